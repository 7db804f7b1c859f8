"""Forgets what nobody will ask for any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from essaim.usecases.services import Services

DAY = 86_400.0
#: Seconds between two times that one of all processes looks.
EVERY = 3600.0
#: How long is kept what is over.
LEASES = RUNS = 90 * DAY
EVENTS, VISITS, SESSIONS = 30 * DAY, 365 * DAY, 7 * DAY
#: What somebody did is asked for long after it happened.
AUDIT = 2 * 365 * DAY


class Upkeep:
    """Once an hour, in one of all processes, removes what is too old."""

    name = "upkeep"

    def __init__(self, services: Services) -> None:
        self._services = services

    def reconcile(self) -> float:
        """Remove."""
        services = self._services
        if services.turns.take(self.name, EVERY):
            services.visits.prune(VISITS)
            services.workers.prune()
            services.events.prune(EVENTS)
            services.audit.prune(AUDIT)
            services.people.prune(SESSIONS)
            services.invites.prune()
            services.leases.prune(LEASES)
            services.fleet.enrolments.prune(SESSIONS)
            self._homes()
        return EVERY / 10

    def _homes(self) -> None:
        """Remove copies whose lease is over: its last run removes them, but one may come late."""
        services = self._services
        for key in services.lending.homes.leases():
            lease = services.leases.get(key)
            if lease is None or not lease.state.open:
                services.lending.homes.forget(key)
