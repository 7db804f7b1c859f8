"""A real server over a real store, engine and courier; only its workflows are trivial."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import jwt
import uvicorn
from fastapi.routing import APIRoute

from essaim.api.app import create_app
from essaim.api.limits import Rate
from essaim.api.options import RATES, Gateway, Options
from essaim.couriers.threads import ThreadCourier
from essaim.engine.execute import Engine
from essaim.engine.owner import this_owner
from essaim.engine.workflow import Step, Workflow
from essaim.model.fleet import Announcement, LeaseState, NodeState, Quota, Role, User
from essaim.model.invites import SignupMode
from essaim.model.runs import Again
from essaim.plan.health import Policy
from essaim.store.audit.log import AuditLog
from essaim.store.classes import Classes
from essaim.store.database import migrate, open_database
from essaim.store.events import Events
from essaim.store.fleet import Fleet
from essaim.store.invites import Invites
from essaim.store.journal import SqlJournal
from essaim.store.leases import Leases
from essaim.store.metrics import Metrics
from essaim.store.people import People
from essaim.store.rosters import Rosters
from essaim.store.settings import Settings
from essaim.store.visits import Visits
from essaim.store.workers import Workers
from essaim.usecases.credentials import digest, new_token
from essaim.usecases.leases import grant_queue
from essaim.usecases.people import authenticate, begin_session
from essaim.usecases.signing_keys import ACCESS
from signing import signing_keys

if TYPE_CHECKING:
    from fastapi import FastAPI

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx1rKqXl7ZJcG9Vt0mC3o2y5QnC8m8m0mJ3H1g0Yy2k me@here"
PASSWORD = "correct horse battery"
PLENTY = Quota(machines=1000, hours=1e6)
PATIENCE = 60.0
GATEWAY = Gateway(host="gateway.example.org", port=2222, host_key="ssh-ed25519 AAAAgateway")

#: So many that no test runs into a limit it is not about.
FREELY = dict.fromkeys(RATES, Rate(1_000_000, 60.0))


def options(**changes) -> Options:
    values = {
        "gateway": GATEWAY,
        "agent": lambda: "#!/usr/bin/env python3\n",
        "authority": "-----BEGIN CERTIFICATE-----\n",
        "rates": FREELY,
        "look_every": 0.02,
    }
    return Options(**{**values, **changes})


#: What controllers log in with.
CONTROL_KEY = "ssh-ed25519 AAAA control-plane"


class Plane:
    """What use cases of the fleet ask of their services.

    Leases become active when their run has come through, which `gate` may hold up.
    """

    def __init__(self, url: str) -> None:
        self.database = open_database(url)
        migrate(self.database)
        policy = Policy(interval=3600.0)  # no node goes stale because a test is slow
        self.people = People(self.database)
        self.invites = Invites(self.database)
        self.signup_mode, self.breached = SignupMode.OPEN, None  # tests choose it
        self.signing_keys = signing_keys(self.database)
        self.events = Events(self.database)
        self.audit = AuditLog(self.database)
        self.visits = Visits(self.database)
        self.metrics = Metrics(self.database)
        self.rosters = Rosters(self.database)
        self.classes = Classes(self.database)
        self.fleet = Fleet(self.database, policy)
        self.leases = Leases(self.database, policy)
        self.journal = SqlJournal(self.database)
        self.workers = Workers(self.database)
        self.broker, self.site_queues = "", False
        self.settings = Settings(self.database)
        self.settings.first("public.control", CONTROL_KEY)  # as a controller does
        self.gate = threading.Event()
        self.gate.set()
        self.engine = Engine(self.journal, WORKFLOWS, self, owner=this_owner())
        self.courier = ThreadCourier(self.engine, threads=2)

    def close(self) -> None:
        assert self.courier.stop()
        self.database.close()

    def user(self, name: str, role: Role = Role.MEMBER, quota: Quota = PLENTY) -> User:
        return self.people.add(name, "no hash", role=role, quota=quota)

    def session(self, user: User) -> tuple[str, str]:
        """An access token, and the session it belongs to."""
        token = begin_session(self, user).access
        return token, authenticate(self, token).sid

    def token(self, user: User) -> str:
        return self.session(user)[0]

    def expired(self, user: User) -> str:
        claims = jwt.decode(self.token(user), options={"verify_signature": False})
        claims["exp"] = int(time.time()) - 5
        return jwt.encode(claims, self.signing_keys[ACCESS].signing().secret, algorithm="HS256")

    def enrolment(self, *, approve: bool = False) -> str:
        token = new_token("enrol")
        self.fleet.enrol(digest(token), uses=1, seconds=3600, approve=approve)
        return token

    def join(self, name: str, *, approve: bool = False) -> tuple[str, str]:
        """A machine that joined: its id and credential."""
        credential = new_token("node")
        said = Announcement(
            name=name,
            cores=2,
            memory=2048,
            address="192.0.2.1",
            host_key=f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5{digest(name)}",
        )
        token = self.enrolment(approve=approve)
        node, _run = self.fleet.register(digest(token), said, digest(credential))
        return node.id, credential

    def ready(self, name: str) -> str:
        node, _credential = self.join(name)
        self.fleet.move(node, NodeState.READY, of=[NodeState.CLEANING])
        return node


def _rent(context):
    if not context.tools.gate.is_set():
        return Again(0.02, "the gate is closed")
    context.tools.leases.move(
        context.run.input["lease"], LeaseState.ACTIVE, of=[LeaseState.GRANTED]
    )
    return {"secret": "for the workflow alone"}


def _release(context):
    lease = context.tools.leases.get(context.run.input["lease"])
    for node in lease.nodes:
        context.tools.fleet.move(node, NodeState.READY, of=[NodeState.HELD])
    context.tools.leases.move(lease.id, LeaseState.ENDED, of=[LeaseState.ENDING])
    grant_queue(context.tools)


def _clean(context):
    context.tools.fleet.move(context.run.input["node"], NodeState.READY, of=[NodeState.CLEANING])


WORKFLOWS = {
    "rent": Workflow("rent", (Step(name="account", do=_rent),)),
    "release": Workflow("release", (Step(name="account", do=_release),)),
    "clean": Workflow("clean", (Step(name="prove", do=_clean),)),
}


@contextlib.contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Serve an application on a free port of the loopback; gives its address."""
    config = uvicorn.Config(
        app,
        log_level="info",
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=5,
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    # With its protocol named: asyncio turns Nagle's algorithm off for such sockets only, and an
    # answer in two pieces would wait 40 ms for the client's acknowledgement.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
    assert not thread.is_alive()


@contextlib.contextmanager
def world(url: str, **changes) -> Iterator[World]:
    plane = Plane(url)
    app = create_app(plane, options(**changes))
    with (
        contextlib.closing(plane),
        serving(app) as address,
        httpx.Client(base_url=address, timeout=PATIENCE) as client,
    ):
        yield World(plane, app, client)


class World:
    """A control plane, its application, and a client of the server that runs it."""

    def __init__(self, plane: Plane, app: FastAPI, client: httpx.Client) -> None:
        self.plane = plane
        self.app = app
        self.client = client

    def ask(self, method: str, path: str, token: str = "", **more) -> httpx.Response:
        headers = dict(more.pop("headers", {}))
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return self.client.request(method, path, headers=headers, **more)

    def rent(self, token: str, **body) -> httpx.Response:
        key = body.pop("key", "")
        headers = {"Idempotency-Key": key} if key else {}
        wish = {"public_key": KEY, "patience": 10, **body}
        return self.ask("POST", "/api/rent", token, json=wish, headers=headers)


def wait_for(condition, patience: float = PATIENCE):
    """What the condition comes to, once it is true."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)
    return found


def is_problem(response: httpx.Response, status: int, code: str) -> dict:
    """Check that an answer is a problem as RFC 9457 has them; gives it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert {"type", "title", "status", "code", "detail", "hint"} <= set(problem)
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["detail"]
    return problem


def routes(app: FastAPI) -> set[tuple[str, str]]:
    """Every method and path an application answers, those of included routers too."""
    found, left = set(), list(app.routes)
    while left:
        route = left.pop()
        inner = getattr(route, "original_router", None)
        if inner is not None:
            left += inner.routes
            continue
        path = route.path_format if isinstance(route, APIRoute) else route.path
        found |= {(method, path) for method in route.methods if method != "HEAD"}
    return found
