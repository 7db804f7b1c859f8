"""Celery's worker in this process: threads that carry the runs that messages name."""

from __future__ import annotations

import logging
import os
import signal
import socket
from typing import TYPE_CHECKING, Any, Protocol

from celery import signals  # type: ignore[import-untyped]

from essaim.couriers.celery import CARRY, queue_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from essaim.couriers.celery import CeleryCourier

log = logging.getLogger(__name__)

#: What a shell shows of a process that SIGQUIT ended.
COLD = 131


class Carries(Protocol):
    """What a worker needs of an engine."""

    def work(
        self, claimed: Callable[[], None] | None = None, *, run: str | None = None
    ) -> bool | float:
        """Carry the run as far as it goes now; True when there was something to carry."""

    def stop(self) -> None:
        """Claim no more, and hand runs back after their current step."""


class CeleryWorker:
    """Reads the queues of some sites until a signal ends it.

    SIGTERM and SIGINT: take no more, let each run finish its step, hand it back.  SIGQUIT: end at
    once; what was carried is left to its lease.
    """

    def __init__(
        self,
        engine: Carries,
        courier: CeleryCourier,
        *,
        sites: Collection[str],
        concurrency: int,
    ) -> None:
        self._engine = engine
        self._courier = courier
        app = courier.app
        app.task(self.carry, name=CARRY, ignore_result=True)
        app.set_current()
        # Kept: Celery's signals hold their receivers by weak references.
        signals.worker_shutting_down.connect(self._shutting_down)
        signals.worker_ready.connect(self._ready)
        self._worker = app.Worker(
            hostname=f"essaim-{os.getpid()}@{socket.gethostname()}",
            pool="threads",
            concurrency=concurrency,
            queues=[queue_of(site) for site in sorted(sites)],
            task_events=True,
            without_gossip=True,
            without_mingle=True,
            quiet=True,
            loglevel="WARNING",
        )

    def carry(self, run_id: str) -> None:
        """Carry a run as far as it goes now, then see that whatever that set going is told."""
        try:
            while self._engine.work(run=run_id) is True:
                self._courier.wake()
        except Exception:
            # The journal cannot be reached for now: the run is sent again when nobody came.
            log.exception("run %s could not be carried", run_id)

    def run(self) -> int:
        """Work until a signal says otherwise; return the exit code of the process."""
        self._courier.sweep()
        self._worker.start()
        return int(self._worker.exitcode or 0)

    def _ready(self, **_told: Any) -> None:
        signal.signal(signal.SIGQUIT, _end_at_once)  # Celery's own waits for threads to end

    def _shutting_down(self, **_told: Any) -> None:
        self._engine.stop()


def _end_at_once(*_told: object) -> None:
    os._exit(COLD)
