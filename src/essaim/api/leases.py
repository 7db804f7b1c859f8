"""Routes for leases, and for the runs that work on them."""

import asyncio
import time
from typing import Annotated, Any

from fastapi import Header, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from essaim.api.asked import Extend, Release, Rent
from essaim.api.asking import Asking, Plane, Renting, Token, Told
from essaim.api.given import Lease, LeaseDetail, RunInFull, Visit
from essaim.api.pages import LINK, Paged
from essaim.api.problems import answers
from essaim.api.routes import routes
from essaim.model.fleet import LeaseState, Permission, User
from essaim.usecases import leases, people, runs
from essaim.usecases.leases import LeaseView
from essaim.usecases.services import Services

router = routes("leases")

#: Seconds between looks at a lease that is being made ready: the first, and the longest.
SOON, LATER = 0.03, 0.3
#: One that waits for others is looked at less often: its place in the queue costs a little.
QUEUED = 1.0

OVER = (LeaseState.ENDING, LeaseState.ENDED, LeaseState.FAILED)

LeaseId = Annotated[
    str, Path(description="Which lease", pattern=r"^l-[a-z0-9]{4,24}$", examples=["l-3k9x2m7q"])
]
RunId = Annotated[
    str,
    Path(
        description="Which run", pattern=r"^[A-Za-z0-9._:-]{1,190}$", examples=["rent-l-3k9x2m7q"]
    ),
]
IdempotencyKey = Annotated[
    str,
    Header(
        pattern=r"^[\x21-\x7e]*$",
        max_length=128,
        description="The same key gets the same lease, however often it is sent",
        examples=["5e0b8c6e"],
    ),
]

LOCATION = {"Location": {"description": "The lease", "schema": {"type": "string"}}}
RENTED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "This key's lease is over already: see `state`",
        "headers": LOCATION,
        "model": LeaseDetail,
    },
    201: {"description": "Ready: `access` says how to log in", "headers": LOCATION},
    202: {
        "description": "Queued, or being made ready: see `run_address` and `position`",
        "headers": LOCATION,
        "model": LeaseDetail,
    },
}


# A coroutine: whoever waits here keeps no thread from those who do not.
@router.post("/rent", status_code=201, responses={**RENTED, **answers(401, 403, 409)})
async def rent(
    *,
    body: Rent,
    services: Plane,
    told: Told,
    token: Token,
    request: Request,
    response: Response,
    idempotency_key: IdempotencyKey = "",
) -> LeaseDetail:
    """Rent machines; waits a moment for them to be ready."""
    by, view = await run_in_threadpool(_rented, request, services, token, body, idempotency_key)
    request.state.object = view.lease.id
    view = await _ready(services, by, view, body.patience)
    response.status_code = _status(view.lease.state)
    response.headers["Location"] = f"/api/leases/{view.lease.id}"
    return LeaseDetail.seen(view, told.gateway)


def _rented(
    request: Request, services: Services, token: str, body: Rent, key: str
) -> tuple[User, LeaseView]:
    # In one thread: to change threads costs as much as to ask the database.
    by = people.authenticate(services, token, Permission.RENT).user
    request.state.user = by
    made = leases.rent(services, by, body.wish(), body.public_key, key=key)
    return by, leases.view(services, made)


def _status(state: LeaseState) -> int:
    if state in OVER:
        return 200
    return 201 if state is LeaseState.ACTIVE else 202


async def _ready(services: Services, by: User, view: LeaseView, patience: float) -> LeaseView:
    until = time.monotonic() + patience
    pause = SOON
    while True:
        left = until - time.monotonic()
        if view.lease.state is LeaseState.ACTIVE or view.lease.state in OVER or left <= 0:
            return view
        queued = view.lease.state is LeaseState.QUEUED
        await asyncio.sleep(min(left, QUEUED if queued else pause))
        pause = min(pause * 1.5, LATER)
        view = await run_in_threadpool(leases.lease, services, by, view.lease.id)


@router.post("/extend", responses=answers(401, 403, 404, 409))
def extend(body: Extend, services: Plane, session: Renting, request: Request) -> Lease:
    """Keep machines longer, within the quota."""
    request.state.object = body.lease
    return Lease.of(leases.extend(services, session.user, body.lease, body.seconds))


@router.post("/release", responses=answers(401, 403, 404, 409))
def release(body: Release, services: Plane, session: Renting, request: Request) -> Lease:
    """Give machines back.  Done twice, it is done once.

    With `failed`, a lease that asked for it is held a while first; a second release ends that.
    """
    request.state.object = body.lease
    return Lease.of(leases.release(services, session.user, body.lease, failed=body.failed))


@router.get("/leases", responses={200: LINK, **answers(401, 403)})
def list_leases(
    *,
    services: Plane,
    session: Asking,
    page: Paged,
    everybody: Annotated[
        bool, Query(alias="all", description="Everybody's, for operators")
    ] = False,
) -> list[Lease]:
    """List one's leases, the newest first."""
    found = leases.leases(
        services, session.user, all=everybody, after=page.place(), limit=page.more
    )
    return [Lease.of(each) for each in page.cut(found, lambda each: [each.asked_at, each.id])]


@router.get("/leases/{lease_id}", responses=answers(401, 404))
def one_lease(lease_id: LeaseId, services: Plane, told: Told, session: Asking) -> LeaseDetail:
    """Show one lease with its machines, or its place in the queue."""
    return LeaseDetail.seen(leases.lease(services, session.user, lease_id), told.gateway)


@router.get("/leases/{lease_id}/visits", responses={200: LINK, **answers(401, 404)})
def list_visits(lease_id: LeaseId, services: Plane, session: Asking, page: Paged) -> list[Visit]:
    """List who came through the gateway to a lease, the newest first."""
    found = leases.visits(services, session.user, lease_id, after=page.place(), limit=page.more)
    return [Visit.of(each) for each in page.cut(found, lambda each: [each.opened_at, each.id])]


@router.get("/runs/{run_id}", responses=answers(401, 404))
def one_run(run_id: RunId, services: Plane, session: Asking) -> RunInFull:
    """Show the work on one of one's leases; operators see all."""
    return RunInFull.of(runs.work(services, session.user, run_id))
