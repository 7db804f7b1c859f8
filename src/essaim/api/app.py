"""Makes the HTTP API.  It keeps nothing that others need, so any number of them may run."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from essaim import __version__
from essaim.api import (
    access,
    audit,
    enrolments,
    events,
    invites,
    leases,
    nodes,
    people,
    problems,
    rosters,
    students,
    watching,
    website,
)
from essaim.api.audit_trail import AuditTrail
from essaim.api.limits import Limiter
from essaim.api.metrics import Exporter, Measured
from essaim.api.options import Options
from essaim.api.password_gate import PasswordGate
from essaim.api.proxies import TrustedProxies
from essaim.api.wire import SecureHeaders, SmallBodies

if TYPE_CHECKING:
    from essaim.usecases.services import Services

__all__ = ["Options", "create_app"]

#: Those asked most come first.
ROUTERS = (
    nodes.router,
    enrolments.router,
    leases.router,
    people.router,
    invites.router,
    access.router,
    students.router,
    rosters.router,
    events.router,
    audit.router,
    watching.router,
    website.router,
)
ABOUT = """Rent machines of a fleet.  Log in, send the access token as `Authorization: Bearer …`;
whatever fails is told as a problem (RFC 9457) with a stable `code`."""
#: Where the first clause of a description ends.
CLAUSE = re.compile(r"[.:;](?:\s|$)")

TAGS = [
    {"name": "people", "description": "Accounts, sessions, quotas."},
    {"name": "leases", "description": "Rent machines, keep them longer, give them back."},
    {"name": "fleet", "description": "Machines that join the fleet, and their upkeep."},
    {"name": "students", "description": "Machines of a class: one's own, or a teacher's pupils'."},
    {"name": "operation", "description": "Health, metrics, and the agent's program."},
]


def create_app(services: Services, options: Options | None = None) -> FastAPI:
    """The API of a control plane."""
    told = options or Options()
    exporter = Exporter()
    app = FastAPI(
        title="Essaim",
        version=__version__,
        description=ABOUT,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        servers=[{"url": told.public_url or "/"}],
    )
    app.state.services = services
    app.state.options = told
    app.state.exporter = exporter
    shared = services.tries if told.together else None
    app.state.limiter = Limiter(told.rates, told.clock, shared)
    app.state.password_gate = PasswordGate()
    problems.install(app)
    # Not included as routers: each of them would be walked through twice for every request.
    app.router.routes.extend(route for router in ROUTERS for route in router.routes)
    app.add_middleware(AuditTrail, services=services)
    app.add_middleware(SmallBodies, most=told.most_bytes)
    app.add_middleware(SecureHeaders)
    app.add_middleware(Measured, exporter=exporter)
    app.add_middleware(TrustedProxies, trusted=told.trusted_proxies)
    app.openapi = functools.cache(functools.partial(_openapi, app))  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        servers=app.servers,
        tags=TAGS,
    )
    for item in document["paths"].values():
        for operation in item.values():
            # The first clause: FastAPI would make a summary of the function's name.
            operation["summary"] = CLAUSE.split(operation["description"], maxsplit=1)[0]
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    problem = problems.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs", {}) | {"Problem": problem}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return document
