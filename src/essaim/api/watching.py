"""Routes for those who run the server: is it alive, how is the fleet, and the agent's text."""

from collections import Counter
from collections.abc import Iterable, Iterator

from fastapi.responses import PlainTextResponse

from essaim.api.asking import Plane, Told, Watcher
from essaim.api.given import Health
from essaim.api.problems import answers
from essaim.api.routes import routes
from essaim.model.errors import TransientError, UnknownError
from essaim.model.fleet import LeaseState, NodeState
from essaim.usecases import watching

router = routes("operation", prefix="")

METRICS = "text/plain; version=0.0.4; charset=utf-8"
TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}}
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
def metrics(services: Plane, watcher: Watcher) -> PlainTextResponse:
    """Numbers for Prometheus, for operators and for whoever is on this computer."""
    found = watching.numbers(services, watcher)
    return PlainTextResponse("\n".join(_metrics(found)) + "\n", media_type=METRICS)


def _metrics(found: watching.Numbers) -> Iterator[str]:
    states = [state for state in LeaseState if state.open]
    yield from _gauge("essaim_nodes", "Nodes by state.", _by_state(found.nodes, NodeState))
    drained = [("", found.drained)]
    yield from _gauge("essaim_nodes_drained", "Nodes that take no more leases.", drained)
    yield from _gauge("essaim_leases", "Open leases by state.", _by_state(found.leases, states))
    queue = found.leases[LeaseState.QUEUED]
    yield from _gauge("essaim_queue_length", "Leases that wait for nodes.", [("", queue)])


def _by_state(
    counts: Counter[NodeState] | Counter[LeaseState], states: Iterable[NodeState | LeaseState]
) -> list[tuple[str, int]]:
    found = {state.value: count for state, count in counts.items()}
    return [(f'{{state="{state.value}"}}', found.get(state.value, 0)) for state in states]


def _gauge(name: str, about: str, values: Iterable[tuple[str, int]]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} gauge"
    for labels, value in values:
        yield f"{name}{labels} {value}"


@router.get("/agent.py", response_class=PlainTextResponse, responses={200: CODE, **answers(404)})
def agent(told: Told) -> PlainTextResponse:
    """The agent, one Python file, for machines that want to join."""
    if told.agent is None:
        raise UnknownError("this server gives out no agent", hint="ask who runs it")
    return PlainTextResponse(told.agent(), media_type="text/x-python; charset=utf-8")
