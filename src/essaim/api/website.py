"""Pages for people: what this server is, and the reference of its API.

Nothing is loaded from elsewhere: Swagger UI's files come with the package `fastapi-offline`.
"""

import functools
import mimetypes
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

import fastapi_offline
import jinja2
from fastapi import Header, Request, Response
from fastapi.responses import HTMLResponse

from essaim import __version__
from essaim.api.asking import Told
from essaim.api.bruno import archive
from essaim.api.routes import routes
from essaim.model.words import language

router = routes("pages", prefix="")

OWN = FilePath(__file__).parent / "site"
SWAGGER = FilePath(fastapi_offline.__file__).parent / "static"
File = Literal["site.css", "docs.js", "swagger-ui.css", "swagger-ui-bundle.js"]

CLOSED = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
PAGE = {"Content-Security-Policy": f"{CLOSED}; style-src 'self'; img-src data:"}
#: Swagger UI writes styles into its elements, shows pictures from its style sheet, and sends the
#: requests that a person tries out.
REFERENCE = {
    "Content-Security-Policy": f"{CLOSED}; script-src 'self'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'"
}
#: A day: a new version of the server may bring new files.
KEPT = {"Cache-Control": "public, max-age=86400"}
ZIP = {"Content-Disposition": 'attachment; filename="essaim-bruno.zip"'}

_templates = jinja2.Environment(loader=jinja2.FileSystemLoader(OWN), autoescape=True)


@router.get("/", include_in_schema=False)
def home(
    request: Request, told: Told, accept_language: Annotated[str, Header(max_length=1024)] = ""
) -> HTMLResponse:
    """Tell a person what this server is and where to go on."""
    tongue = language(accept_language)
    text = _templates.get_template(f"home.{tongue}.html").render(
        url=told.public_url or str(request.base_url).rstrip("/"),
        gateway=told.gateway,
        version=__version__,
    )
    headers = {**PAGE, "Content-Language": tongue, "Vary": "Accept-Language"}
    return HTMLResponse(text, headers=headers)


@router.get("/docs", include_in_schema=False)
def reference() -> HTMLResponse:
    """Show the reference of the API."""
    return HTMLResponse(_file("docs.html"), headers=REFERENCE)


@router.get("/site/{name}", include_in_schema=False)
def site_file(name: File) -> Response:
    """Give one of the files that the pages are made of."""
    kind, _encoding = mimetypes.guess_type(name)
    return Response(_file(name), media_type=kind, headers=KEPT)


@router.get("/bruno.zip", include_in_schema=False)
def bruno(request: Request) -> Response:
    """Give the API as a collection for Bruno."""
    document: dict[str, Any] = request.app.openapi()
    return Response(archive(document), media_type="application/zip", headers=ZIP)


@functools.cache
def _file(name: str) -> bytes:
    folder = SWAGGER if name.startswith("swagger-ui") else OWN
    return (folder / name).read_bytes()
