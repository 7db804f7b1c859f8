"""For those who run the server: can it serve, and how is the fleet."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim.model.errors import ForbiddenError
from essaim.model.fleet import LeaseState, NodeState, Role, User

if TYPE_CHECKING:
    from essaim.usecases.services import Services


@dataclass(frozen=True, slots=True)
class Numbers:
    """How many there are of what."""

    nodes: Counter[NodeState]
    drained: int
    leases: Counter[LeaseState]  #: the open ones


def ready(services: Services) -> None:
    """TransientError or SetupError when the database does not answer."""
    services.fleet.now()


def numbers(services: Services, by: User | None) -> Numbers:
    """Count the fleet, for operators and for whoever is on this computer, which is None."""
    if by is not None and by.role is Role.MEMBER:
        raise ForbiddenError("only operators may see the metrics")
    nodes, drained = services.fleet.counts()
    return Numbers(nodes, drained, services.leases.counts())
