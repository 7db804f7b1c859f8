"""The HTTP API: translates a request, calls one use case, translates the answer."""
