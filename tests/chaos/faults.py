"""Breaks the parts of a deployment as planned, and mends them."""

from __future__ import annotations

import heapq
import random
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from chaos.history import History
from chaos.plane import SKEWS, Plane
from chaos.schedule import Fault


class Faults:
    """Lets faults happen, each in its time, each mended in its time."""

    def __init__(self, plane: Plane, planned: list[Fault], history: History, seed: int) -> None:
        self._plane, self._history = plane, history
        self._choose = random.Random(seed)
        self._next = [(fault.at, 0, fault) for fault in planned]
        heapq.heapify(self._next)
        self._work = ThreadPoolExecutor(8, thread_name_prefix="fault")
        self._last: dict[str, Future[None]] = {}
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []

    def play(self, over: threading.Event) -> None:
        """Break and mend until all is mended; what was not begun when it is over never is."""
        began = time.monotonic()
        while self._next:
            at, ending, fault = heapq.heappop(self._next)
            if not ending and over.wait(max(0.0, began + at - time.monotonic())):
                continue
            if ending and not over.is_set():
                over.wait(max(0.0, began + at - time.monotonic()))
            self._do(fault, ending=bool(ending))
            if not ending:
                heapq.heappush(self._next, (at + fault.seconds, 1, fault))
        for each in self._last.values():
            each.result()
        self._work.shutdown()

    def _do(self, fault: Fault, *, ending: bool) -> None:
        # What befalls one target happens in order; nobody waits for a database that starts.
        verb: Callable[[str], None] = getattr(
            self, f"_{'mend' if ending else 'break'}_{fault.kind}"
        )
        before = self._last.get(fault.target)

        def act() -> None:
            if before is not None:
                before.result()
            self._history.note("mended" if ending else "broken", fault=fault.name, of=fault.target)
            try:
                verb(fault.target)
            except Exception:  # noqa: BLE001 - one that cannot happen is told in the end
                self.failed.append(f"{fault}: {traceback.format_exc()}")
            if not ending:
                self.counts[fault.name] += 1

        self._last[fault.target] = self._work.submit(act)

    # -- each kind --------------------------------------------------------------------------------

    def _break_kill(self, target: str) -> None:
        self._plane.signal(target, signal.SIGKILL)

    def _mend_kill(self, target: str) -> None:
        self._plane.start(target)

    def _break_freeze(self, target: str) -> None:
        self._plane.signal(target, signal.SIGSTOP)

    def _mend_freeze(self, target: str) -> None:
        self._plane.signal(target, signal.SIGCONT)

    def _break_skew(self, target: str) -> None:
        self._plane.skew(target, self._choose.choice(SKEWS))

    def _mend_skew(self, target: str) -> None:
        self._plane.straighten(target)

    def _break_cut(self, _target: str) -> None:
        self._plane.cable("down")

    def _mend_cut(self, _target: str) -> None:
        self._plane.cable("up")

    def _break_off(self, target: str) -> None:
        self._plane.turn_off(target)

    def _mend_off(self, target: str) -> None:
        self._plane.turn_on(target)

    def _break_restart(self, _target: str) -> None:
        self._plane.database.end(signal.SIGTERM)

    def _mend_restart(self, _target: str) -> None:
        self._plane.database.start()

    def _break_crash(self, target: str) -> None:
        if target == "broker":
            self._broker.stop()
        else:
            self._plane.database.end(signal.SIGKILL)

    def _mend_crash(self, target: str) -> None:
        (self._broker if target == "broker" else self._plane.database).start()

    def _break_slow(self, _target: str) -> None:
        self._plane.database.slow()

    def _mend_slow(self, _target: str) -> None:
        self._plane.database.hurry()

    def _break_full(self, _target: str) -> None:
        self._plane.database.fill()

    def _mend_full(self, _target: str) -> None:
        self._plane.database.empty()
        self._plane.database.mend()

    def _break_flush(self, _target: str) -> None:
        self._broker.forget()

    def _mend_flush(self, _target: str) -> None:
        """Nothing was broken but what was in it."""

    @property
    def _broker(self):
        assert self._plane.broker is not None
        return self._plane.broker
