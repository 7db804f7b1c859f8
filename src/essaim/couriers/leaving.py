"""The courier of processes that carry no runs: whoever does, looks for them every second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from essaim.model.runs import RunState

if TYPE_CHECKING:
    from essaim.model.journal import Journal

#: Seconds between looks at what is waited for.
LOOK_EVERY = 0.2


class LeavingCourier:
    """Leaves due runs in the journal, where workers find them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._ended = threading.Event()

    def wake(self, run_id: str | None = None) -> None:
        """Workers look by themselves."""

    def wait(self, until: str | Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until a run is over or stuck, or until a condition holds; False when it does not."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (self._settled(until) if isinstance(until, str) else until()):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            if self._ended.wait(LOOK_EVERY):
                return False
        return True

    def _settled(self, run: str) -> bool:
        found = self._journal.get(run)
        return found is None or found.state.over or found.state is RunState.STUCK

    def interrupt(self) -> None:
        """Wait no more."""
        self._ended.set()

    def stop(self, *, hand_back: bool = True, grace: float = 30.0) -> bool:  # noqa: ARG002 - nothing is under way here
        """End; there is nothing to hand back."""
        self.interrupt()
        return True
