"""Routes for those who run the server: is it alive, how is the fleet; what machines fetch."""

from fastapi import Request
from fastapi.responses import PlainTextResponse

from essaim.api.asking import Plane, Told, Watcher
from essaim.api.given import Health
from essaim.api.metrics import Exporter
from essaim.api.problems import answers
from essaim.api.routes import routes
from essaim.model.errors import TransientError, UnknownError
from essaim.usecases import watching

router = routes("operation", prefix="")

METRICS = "text/plain; version=0.0.4; charset=utf-8"
TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}}
PEM_TYPE = "application/pem-certificate-chain"
PEM = {"content": {PEM_TYPE: {"schema": {"type": "string"}}}}
CODE = {"content": {"text/x-python": {"schema": {"type": "string"}}}}


@router.get("/healthz", responses=answers())
async def healthz() -> Health:
    """This process answers."""
    return Health(status="ok")


@router.get("/readyz", responses=answers())
def readyz(services: Plane, told: Told) -> Health:
    """This process can serve: its database answers, and it is not about to end."""
    if told.leaving():
        raise TransientError("this server is about to end", hint="ask another one")
    watching.ready(services)
    return Health(status="ok")


@router.get(
    "/metrics", response_class=PlainTextResponse, responses={200: TEXT, **answers(401, 403)}
)
def metrics(services: Plane, watcher: Watcher, request: Request) -> PlainTextResponse:
    """Numbers for Prometheus, for operators and for whoever is on this computer."""
    exporter: Exporter = request.app.state.exporter
    return PlainTextResponse(exporter.text(services, watcher), media_type=METRICS)


@router.get("/ca.pem", response_class=PlainTextResponse, responses={200: PEM, **answers(404)})
def authority(told: Told) -> PlainTextResponse:
    """Fetch the certificate of the authority that signs for this server."""
    if not told.authority:
        raise UnknownError(
            "this server names no certificate authority", hint="ESSAIM_CA of the API names its file"
        )
    return PlainTextResponse(told.authority, media_type=PEM_TYPE)


@router.get("/agent.py", response_class=PlainTextResponse, responses={200: CODE, **answers(404)})
def agent(told: Told) -> PlainTextResponse:
    """The agent, one Python file, for machines that want to join."""
    if told.agent is None:
        raise UnknownError("this server gives out no agent", hint="ask who runs it")
    return PlainTextResponse(told.agent(), media_type="text/x-python; charset=utf-8")
