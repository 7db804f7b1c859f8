"""Sets right what a process that died could not: its visits, its tunnels."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from essaim.usecases.services import Services

#: Seconds between two times that one of all processes looks; and that old tries are forgotten.
EVERY, TRIES_EVERY = 5.0, 600.0


class RollCall:
    """Every few seconds, in one of all processes, closes what dead gateways left open."""

    name = "rollcall"

    def __init__(self, services: Services) -> None:
        self._services = services

    def reconcile(self) -> float:
        """Close and forget."""
        services = self._services
        if services.turns.take(self.name, EVERY):
            services.visits.abandoned()
            services.ways.tunnels.prune()
        if services.turns.take("tries", TRIES_EVERY):
            services.tries.prune()
        return EVERY
