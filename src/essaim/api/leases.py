"""Routes for leases, and for the runs that work on them."""

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Response
from starlette.concurrency import run_in_threadpool

from essaim.api.asked import Extend, Release, Rent
from essaim.api.asking import Asking, Plane, Told
from essaim.api.given import Lease, LeaseDetail, RunInFull
from essaim.api.pages import LINK, Paged
from essaim.api.problems import answers
from essaim.model.errors import UnknownError
from essaim.model.fleet import LeaseState, Role, User
from essaim.usecases import leases, runs
from essaim.usecases.leases import LeaseView
from essaim.usecases.services import Services

router = APIRouter(prefix="/api", tags=["leases"])

#: Seconds between looks at a lease that is being made ready: the first, and the longest.
SOON, LATER = 0.03, 0.3
#: One that waits for others is looked at less often: its place in the queue costs a little.
QUEUED = 1.0

OVER = (LeaseState.ENDING, LeaseState.ENDED, LeaseState.FAILED)

LeaseId = Annotated[str, Path(pattern=r"^l-[a-z0-9]{4,24}$", examples=["l-3k9x2m7q"])]
RunId = Annotated[str, Path(pattern=r"^[A-Za-z0-9._:-]{1,190}$", examples=["rent-l-3k9x2m7q"])]
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
    session: Asking,
    response: Response,
    idempotency_key: IdempotencyKey = "",
) -> LeaseDetail:
    """Rent machines; waits a moment for them to be ready."""
    made = await run_in_threadpool(
        leases.rent, services, session.user, body.wish(), body.public_key, key=idempotency_key
    )
    view = await _ready(services, session.user, made.id, body.patience)
    response.status_code = _status(view.lease.state)
    response.headers["Location"] = f"/api/leases/{made.id}"
    return LeaseDetail.seen(view, told.gateway)


def _status(state: LeaseState) -> int:
    if state in OVER:
        return 200
    return 201 if state is LeaseState.ACTIVE else 202


async def _ready(services: Services, by: User, lease_id: str, patience: float) -> LeaseView:
    until = time.monotonic() + patience
    pause = SOON
    while True:
        view = await run_in_threadpool(leases.lease, services, by, lease_id)
        left = until - time.monotonic()
        if view.lease.state is LeaseState.ACTIVE or view.lease.state in OVER or left <= 0:
            return view
        queued = view.lease.state is LeaseState.QUEUED
        await asyncio.sleep(min(left, QUEUED if queued else pause))
        pause = min(pause * 1.5, LATER)


@router.post("/extend", responses=answers(401, 404, 409))
def extend(body: Extend, services: Plane, session: Asking) -> Lease:
    """Keep machines longer, within the quota."""
    return Lease.of(leases.extend(services, session.user, body.lease, body.seconds))


@router.post("/release", responses=answers(401, 404))
def release(body: Release, services: Plane, session: Asking) -> Lease:
    """Give machines back.  Done twice, it is done once."""
    return Lease.of(leases.release(services, session.user, body.lease))


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
    found = leases.leases(services, session.user, all=everybody)
    return [Lease.of(each) for each in page.of(found, key=lambda each: [-each.asked_at, each.id])]


@router.get("/leases/{lease_id}", responses=answers(401, 404))
def one_lease(lease_id: LeaseId, services: Plane, told: Told, session: Asking) -> LeaseDetail:
    """Show one lease with its machines, or its place in the queue."""
    return LeaseDetail.seen(leases.lease(services, session.user, lease_id), told.gateway)


@router.get("/runs/{run_id}", responses=answers(401, 404))
def one_run(run_id: RunId, services: Plane, session: Asking) -> RunInFull:
    """Show the work on one of one's leases; operators see all."""
    try:
        detail = runs.show(services, run_id)
        if session.user.role is Role.MEMBER:
            leases.lease(services, session.user, str(detail.run.input.get("lease", "")))
    except UnknownError as error:
        # The same sentence for what is not there and for what is another's.
        raise UnknownError(f"no run {run_id}", hint="see `run` of your leases") from error
    return RunInFull.of(detail)
