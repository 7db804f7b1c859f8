SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#reference",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  displayOperationId: false,
  // The default asks a server on the internet whether the description is valid.
  validatorUrl: null,
});
