"""The API as a collection for Bruno, an API client that keeps requests as text files."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

#: Variables of the environment `local`: where the server is, and who asks.
VARIABLES = {
    "server": "http://127.0.0.1:8080",
    "name": "ada",
    "password": "",
    "invite": "",
    "access": "",
    "refresh": "",
    "lease": "",
    "node_credential": "",
}
#: What is kept of an answer for the requests after it.
KEPT = {
    "login": {"access": "access", "refresh": "refresh"},
    "refresh": {"access": "access", "refresh": "refresh"},
    "rent": {"lease": "id"},
}
#: Fields of a body that are taken from a variable.
FROM_VARIABLES = {name: name for name in ("name", "password", "invite", "refresh", "lease")}
#: Of the requests that speak about oneself: other bodies have names of something else.
ABOUT_ONESELF = ("signup", "login", "refresh", "extend", "release")


def collection(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of the collection, by path."""
    about = {"version": "1", "name": document["info"]["title"], "type": "collection"}
    files = {
        "bruno.json": json.dumps(about, indent=2) + "\n",
        "collection.bru": _block("docs", document["info"]["description"]),
        "environments/local.bru": _environment(),
    }
    for number, (path, method, operation) in enumerate(_operations(document), 1):
        name = operation["operationId"]
        folder = operation["tags"][0]
        files[f"{folder}/{name}.bru"] = _request(document, number, path, method, operation)
    return files


def archive(document: Mapping[str, Any]) -> bytes:
    """Return the collection as a ZIP file."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as target:
        for path, text in collection(document).items():
            target.writestr(f"essaim/{path}", text)
    return made.getvalue()


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def _environment() -> str:
    secret = ("password", "invite", "access", "refresh", "node_credential")
    plain = "".join(
        f"  {name}: {value}\n" for name, value in VARIABLES.items() if name not in secret
    )
    return f"vars {{\n{plain}}}\nvars:secret [\n  {', '.join(secret)}\n]\n"


def _request(
    document: Mapping[str, Any], number: int, path: str, method: str, operation: Mapping[str, Any]
) -> str:
    body = _body(document, operation)
    auth = _auth(operation)
    kind = "bearer" if auth else "none"
    url = "{{server}}" + re.sub(r"\{(\w+)\}", r":\1", path)
    blocks = [
        _block("meta", f"name: {operation['operationId']}\ntype: http\nseq: {number}"),
        _block(method, f"url: {url}\nbody: {'json' if body else 'none'}\nauth: {kind}"),
    ]
    if parameters := _path_parameters(operation):
        blocks.append(_block("params:path", parameters))
    if auth:
        blocks.append(_block("auth:bearer", f"token: {{{{{auth}}}}}"))
    if body:
        blocks.append(_block("body:json", body))
    if kept := KEPT.get(operation["operationId"]):
        lines = [f'bru.setVar("{name}", res.body.{field});' for name, field in kept.items()]
        blocks.append(_block("script:post-response", "\n".join(lines)))
    blocks.append(_block("docs", operation["description"]))
    return "\n".join(blocks)


def _auth(operation: Mapping[str, Any]) -> str:
    """Return the variable that holds the token of a request; empty when it needs none."""
    schemes = {name for each in operation.get("security", ()) for name in each}
    if "access" in schemes:
        return "access"
    return "node_credential" if "node" in schemes else ""


def _path_parameters(operation: Mapping[str, Any]) -> str:
    found = [each for each in operation.get("parameters", ()) if each["in"] == "path"]
    return "\n".join(f"{each['name']}: {_parameter(each)}" for each in found)


def _parameter(parameter: Mapping[str, Any]) -> str:
    if parameter["name"] == "lease_id":
        return "{{lease}}"
    schema = parameter["schema"]
    values = [*schema.get("examples", ()), *schema.get("enum", ()), *parameter.get("examples", ())]
    return str(values[0]) if values else ""


def _body(document: Mapping[str, Any], operation: Mapping[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if not content:
        return ""
    example = _example(document, content["schema"])
    if operation["operationId"] in ABOUT_ONESELF:
        example |= {
            field: f"{{{{{name}}}}}" for field, name in FROM_VARIABLES.items() if field in example
        }
    return json.dumps(example, indent=2, ensure_ascii=False)


def _example(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Any:
    """Return a value that fits a schema: its default, else its example, else the least there is."""
    for known in ([schema["default"]] if "default" in schema else None, schema.get("examples")):
        if known:
            return known[0]
    if reference := schema.get("$ref"):
        return _example(document, document["components"]["schemas"][reference.rsplit("/", 1)[1]])
    if choices := schema.get("anyOf"):
        return _example(document, choices[0])
    if schema.get("type") == "object":
        needed = schema.get("required", ())
        return {
            name: _example(document, each)
            for name, each in schema.get("properties", {}).items()
            if name in needed or "default" in each
        }
    least = {"array": [], "integer": 1, "number": 1, "boolean": False}
    return schema.get("enum", [least.get(schema.get("type", ""), "")])[0]


def _block(name: str, text: str) -> str:
    lines = "".join(f"  {line}\n" if line else "\n" for line in text.splitlines())
    return f"{name} {{\n{lines}}}\n"
