"""For those who run the server: can it serve, and how is the fleet."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim.model.errors import EssaimError, ForbiddenError, TransientError
from essaim.model.fleet import LeaseState, NodeState, Role, User
from essaim.store.metrics import Traffic

if TYPE_CHECKING:
    from essaim.store.metrics import Backlog, Pool
    from essaim.usecases.services import Services

log = logging.getLogger(__name__)

#: Events that are read at once.
SOME = 1000
#: Milliseconds after which every session that ended by a time can be seen.
SETTLED = 5000


@dataclass(frozen=True, slots=True)
class Numbers:
    """How many there are of what."""

    nodes: Counter[NodeState]
    drained: int
    leases: Counter[LeaseState]  #: the open ones
    backlog: Backlog
    pool: Pool | None  #: None where connections are not pooled


@dataclass(frozen=True, slots=True)
class Seen:
    """Up to where what happened has been counted."""

    event: int
    at: int  #: milliseconds, in the database's clock


@dataclass(frozen=True, slots=True)
class News:
    """What happened since somebody last looked."""

    events: Counter[str]  #: by kind
    traffic: Traffic


def ready(services: Services) -> None:
    """TransientError when the database does not answer; strangers ask, so it says no more."""
    try:
        services.fleet.now()
    except EssaimError as error:
        log.warning("not ready: %s", error)
        raise TransientError(
            "the database does not answer", hint="the log of this process says why"
        ) from error


def numbers(services: Services, by: User | None) -> Numbers:
    """Count the fleet, for operators and for whoever is on this computer, which is None."""
    if by is not None and by.role is Role.MEMBER:
        raise ForbiddenError("only operators may see the metrics")
    nodes, drained = services.fleet.counts()
    figures = services.metrics
    return Numbers(nodes, drained, services.leases.counts(), figures.backlog(), figures.pool())


def news(services: Services, seen: Seen | None) -> tuple[News, Seen]:
    """Count what happened after `seen`, and say up to where; None: nothing so far."""
    until = services.metrics.now() - SETTLED
    if seen is None:
        return News(Counter(), Traffic()), Seen(services.events.last(), until)
    kinds: Counter[str] = Counter()
    last = seen.event
    while found := services.events.since(last, limit=SOME):
        kinds.update(event.kind for event in found)
        last = found[-1].id
    return News(kinds, services.metrics.traffic(seen.at, until)), Seen(last, max(seen.at, until))
