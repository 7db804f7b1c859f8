"""A stream of what happens to one's leases (server-sent events)."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Header
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials
from starlette.concurrency import run_in_threadpool

from essaim.api.asking import Plane, Shown, Told, the_session
from essaim.api.given import Lease
from essaim.api.options import Options
from essaim.api.problems import answers
from essaim.model import fleet
from essaim.model.errors import EssaimError, UnauthorisedError
from essaim.usecases import leases, people
from essaim.usecases.services import Services

router = APIRouter(prefix="/api", tags=["leases"])

#: Without a sign of life proxies close a connection.
SIGN_OF_LIFE = 15.0
#: More leases than this are not remembered in an event's id: headers are short.
MOST_REMEMBERED = 100
SEEN = re.compile(r"(l-[a-z0-9]{4,24}):([a-z]{1,20})")

STREAM = {
    "description": "Events `lease`, each with a lease as its data; `end` when the session is over",
    "content": {
        "text/event-stream": {
            "schema": {"type": "string"},
            "example": 'id: l-3k9x2m7q:active\nevent: lease\ndata: {"id": "l-3k9x2m7q", …}\n\n',
        }
    },
}


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: STREAM, **answers(401)},
    dependencies=[Depends(the_session)],
)
async def events(
    services: Plane,
    told: Told,
    shown: Shown,
    last_event_id: Annotated[str, Header(max_length=8192)] = "",
) -> StreamingResponse:
    """Tell the state of one's open leases, and then each change of it.

    With Last-Event-ID only what is different since that event.
    """
    before = dict(SEEN.findall(last_event_id))
    stream = _stream(services, told, _bearer(shown), before)
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


def _bearer(shown: HTTPAuthorizationCredentials | None) -> str:
    return shown.credentials if shown else ""


async def _stream(
    services: Services, told: Options, token: str, before: Mapping[str, str]
) -> AsyncIterator[str]:
    began = alive = time.monotonic()
    yield "retry: 2000\n\n"
    while True:
        try:
            found = await run_in_threadpool(_look, services, token)
        except UnauthorisedError:
            yield "event: end\ndata: {}\n\n"
            return
        except EssaimError:
            return  # the database is away: the client comes again and goes on where it was
        seen, texts = _changes(before, found)
        for text in texts:
            yield text
        before, now = seen, time.monotonic()
        if texts:
            alive = now
        elif now - alive > SIGN_OF_LIFE:
            yield ": still here\n\n"
            alive = now
        if now - began > told.stream_seconds:
            return
        await asyncio.sleep(told.look_every)


def _look(services: Services, token: str) -> list[fleet.Lease]:
    # Each time anew, so that a session that ends also ends its streams.
    session = people.authenticate(services, token)
    return leases.leases(services, session.user)


def _changes(
    before: Mapping[str, str], found: list[fleet.Lease]
) -> tuple[dict[str, str], list[str]]:
    """What is known after telling what changed, and how it is told, the oldest lease first."""
    known = dict(before)
    texts = []
    for lease in reversed(found):
        if known.get(lease.id, "") == lease.state.value:
            continue
        if lease.id not in known and not lease.state.open:
            continue  # it was over before anybody looked
        known[lease.id] = lease.state.value
        data = json.dumps(Lease.of(lease).model_dump(mode="json"))
        texts.append(f"id: {_id(known, found)}\nevent: lease\ndata: {data}\n\n")
    return known, texts


def _id(known: Mapping[str, str], found: list[fleet.Lease]) -> str:
    opened = {lease.id for lease in found if lease.state.open}
    kept = [f"{key}:{state}" for key, state in known.items() if key in opened]
    return ",".join(kept) if len(kept) <= MOST_REMEMBERED else ""
