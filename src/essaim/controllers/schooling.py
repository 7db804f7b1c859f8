"""Starts and stops classes by the clock, and destroys machines whose grace is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim.usecases import classes

if TYPE_CHECKING:
    from essaim.usecases.services import Services

#: Seconds between two looks at the clock; and at what is retired, in one of all processes.
EVERY, RETIRED_EVERY = 5.0, 600.0


class Schooling:
    """Begins what a timetable says, once, and ends what was retired long enough ago."""

    name = "schooling"

    def __init__(self, services: Services) -> None:
        self._services = services

    def reconcile(self) -> float:
        """Ring, then clear up."""
        services = self._services
        if services.turns.take(self.name, EVERY):
            classes.ring(services)
        if services.turns.take("retired", RETIRED_EVERY):
            classes.expire(services)
        return EVERY
