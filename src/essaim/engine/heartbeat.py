"""One thread that keeps the leases of everything an engine holds."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from essaim.model.journal import Journal
    from essaim.model.runs import Run

log = logging.getLogger(__name__)


class Heartbeat:
    """Renews leases three times in each of their lengths, from the first run on until `close`."""

    def __init__(self, journal: Journal, owner: str, lease: float) -> None:
        self._journal = journal
        self._owner = owner
        self._lease = lease
        self._lock = threading.Lock()
        self._runs: dict[str, int] = {}
        self._guards = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def mine(self) -> frozenset[str]:
        """The runs being carried now."""
        with self._lock:
            return frozenset(self._runs)

    def hold(self, run: Run) -> None:
        """Keep this run's lease from now on."""
        with self._lock:
            self._runs[run.id] = run.epoch
        self._start()

    def drop(self, run: Run) -> None:
        """Keep it no longer."""
        with self._lock:
            if self._runs.get(run.id) == run.epoch:
                del self._runs[run.id]

    def guard(self) -> None:
        """Keep the held names that are this owner's too."""
        self._guards = True
        self._start()

    def beat(self) -> None:
        """Renew everything now."""
        with self._lock:
            runs = dict(self._runs)
        if not runs and not self._guards:
            return
        for run in self._journal.heartbeat(self._owner, self._lease, runs):
            with self._lock:
                if self._runs.get(run) == runs[run]:
                    del self._runs[run]  # its worker will find out with its next write

    def close(self) -> None:
        """Stop; what is held by then is left to its lease."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._ended.is_set():
                self._thread = threading.Thread(
                    target=self._loop, name="essaim-heartbeat", daemon=True
                )
                self._thread.start()

    def _loop(self) -> None:
        while not self._ended.wait(self._lease / 3):
            try:
                self.beat()
            except Exception:
                # The next beat may get through; if none does, the lease is rightly lost.
                log.exception("cannot renew leases")
