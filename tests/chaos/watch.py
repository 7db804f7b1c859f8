"""Looks at the database and the machines all along, with its own eyes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import sqlalchemy as sa

from chaos import checks
from chaos.checks import Seen
from chaos.plane import Plane

#: Seconds between looks at the database, and how many of them until the machines are asked.
EVERY, MACHINES = 1.0, 8


class Watch(threading.Thread):
    """Notes each broken promise once, with the moment it was seen."""

    def __init__(self, plane: Plane, wrong: Callable[[str], None]) -> None:
        super().__init__(name="watch", daemon=True)
        self._plane, self._wrong = plane, wrong
        self._over = threading.Event()
        self.engine = sa.create_engine(plane.database.near, poolclass=sa.NullPool)
        self.looks = self.asked = 0

    def stop(self) -> None:
        self._over.set()
        self.join()
        self.engine.dispose()

    def run(self) -> None:
        number = 0
        while not self._over.wait(EVERY):
            number += 1
            seen = self.look()
            if seen is not None:
                self.looks += 1
                for each in checks.two_holders(seen):
                    self._wrong(each)
            if number % MACHINES == 0:
                self._ask()

    def look(self) -> Seen | None:
        """The database as it is; None while it cannot be read."""
        try:
            return checks.read(self.engine)
        except (sa.exc.OperationalError, sa.exc.InternalError):
            return None

    def _ask(self) -> None:
        for machine in self._plane.machines:
            found = self._plane.seen_accounts(machine)
            if found is not None:
                self.asked += 1
                for each in checks.two_accounts(machine, found):
                    self._wrong(each)

    def until(self, holds: Callable[[Seen], list[str]], within: float) -> list[str]:
        """Look until nothing is wrong; gives what is still wrong in the end."""
        deadline = time.monotonic() + within
        while True:
            seen = self.look()
            wrong = ["the database cannot be read"] if seen is None else holds(seen)
            if not wrong or time.monotonic() > deadline:
                return wrong
            time.sleep(1)
