"""A stream of what happens to one's leases, or to the whole fleet (server-sent events)."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header, Query
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from essaim.api.asking import Asking, Plane, Shown, Told
from essaim.api.given import Event
from essaim.api.options import Options
from essaim.api.problems import answers
from essaim.api.routes import routes
from essaim.model import fleet
from essaim.model.errors import EssaimError, UnauthorisedError
from essaim.usecases import events, people
from essaim.usecases.services import Services

router = routes("leases")

#: Without a sign of life proxies close a connection.
SIGN_OF_LIFE = 15.0
NUMBER = re.compile(r"[0-9]{1,18}")

STREAM = {
    "description": "One event for each thing that happened; `end` when the session is over",
    "content": {
        "text/event-stream": {
            "schema": {"type": "string"},
            "example": 'id: 17\nevent: lease.active\ndata: {"id": 17, "kind": …}\n\n',
        }
    },
}


@dataclass(frozen=True, slots=True)
class Listener:
    """Who listens, to what, and how long."""

    token: str
    everything: bool
    follow: bool


@router.get(
    "/events", response_class=StreamingResponse, responses={200: STREAM, **answers(401, 403)}
)
async def follow_events(
    *,
    services: Plane,
    told: Told,
    session: Asking,
    shown: Shown,
    everything: Annotated[
        bool, Query(alias="all", description="The whole fleet, for operators")
    ] = False,
    follow: Annotated[bool, Query(description="Go on with what comes")] = True,
    last_event_id: Annotated[
        str, Header(max_length=190, description="Begin after this event; 0 is the oldest kept")
    ] = "",
) -> StreamingResponse:
    """Tell what happens to one's leases from now on, or after the event that was seen last."""
    after = await run_in_threadpool(events.last, services, session.user, all=everything)
    if NUMBER.fullmatch(last_event_id):
        after = int(last_event_id)
    listener = Listener(shown.credentials if shown else "", everything, follow)
    stream = _stream(services, told, listener, after)
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


async def _stream(
    services: Services, told: Options, listener: Listener, after: int
) -> AsyncIterator[str]:
    yield f"retry: 2000\nid: {after}\n\n"  # so that a break before the first event loses none
    try:
        async with contextlib.aclosing(_looks(services, told, listener, after)) as looks:
            async for found in looks:
                yield "".join(map(_text, found)) or ": still here\n\n"
    except UnauthorisedError:
        yield "event: end\ndata: {}\n\n"
    except EssaimError:
        return  # the database is away: the client comes again and goes on where it was


async def _looks(
    services: Services, told: Options, listener: Listener, after: int
) -> AsyncGenerator[list[fleet.Event], None]:
    """Give what happened, as it does; nothing, when nothing did for a while."""
    began = alive = time.monotonic()
    while True:
        found = await run_in_threadpool(_look, services, listener, after)
        now = time.monotonic()
        if found or now - alive > SIGN_OF_LIFE:
            after, alive = found[-1].id if found else after, now
            yield found
        if len(found) < events.SOME:
            if not listener.follow or now - began > told.stream_seconds:
                return
            await asyncio.sleep(told.look_every)


def _look(services: Services, listener: Listener, after: int) -> list[fleet.Event]:
    # Each time anew, so that a session that ends also ends its streams.
    session = people.authenticate(services, listener.token, fleet.Permission.READ)
    return events.since(services, session.user, after, all=listener.everything)


def _text(event: fleet.Event) -> str:
    data = json.dumps(Event.of(event).model_dump(mode="json"))
    return f"id: {event.id}\nevent: {event.kind}\ndata: {data}\n\n"
