"""Starts and stops classes by the clock and for who logs in, and destroys what was retired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim.controllers.schooling_wake import Waking
from essaim.usecases import classes

if TYPE_CHECKING:
    from essaim.usecases.services import Services

#: Seconds between two looks, in one of all processes: at the clock, at the retired, at log-ins.
EVERY, RETIRED_EVERY, LOGINS_EVERY = 5.0, 600.0, 4.0


class Schooling:
    """Begins what a timetable says, once; starts what who logged in needs; ends what is retired."""

    name = "schooling"

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waking = Waking(services)

    def reconcile(self) -> float:
        """Ring, clear up, then see who logged in."""
        services = self._services
        if services.turns.take(self.name, EVERY):
            classes.ring(services)
        if services.turns.take("retired", RETIRED_EVERY):
            classes.expire(services)
        if services.turns.take("logins", LOGINS_EVERY):
            self._waking.look()
        return EVERY
