"""Simulated time: as fast as the wall's, some times faster, or only when everybody waits."""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from essaim_lab.simulators.proxmox.kernel import Kernel

#: When virtual time begins, in seconds since 1970: always the same, so that histories are too.
EPOCH = 1_800_000_000.0


class Clock(Protocol):
    """What time it is in the simulation.  Its `lock` guards all that is simulated."""

    lock: threading.RLock
    kernel: Kernel

    def settle(self) -> None:
        """Let everything happen that is due by now."""

    def wait(self) -> float | None:
        """Seconds of the wall's time until something happens; None when waiting is no use."""

    def blocked(self) -> None:
        """A request could not be answered at once."""

    def unblocked(self) -> None:
        """It was answered."""


class WallClock:
    """Simulated seconds go by `speed` times faster than those of the wall."""

    def __init__(self, speed: float = 1.0) -> None:
        self.lock = threading.RLock()
        self.speed = speed
        self._wall = time.monotonic()
        self._start = time.time()
        self.kernel = Kernel(self._start)

    def now(self) -> float:
        """Simulated seconds since 1970."""
        return self._start + (time.monotonic() - self._wall) * self.speed

    def settle(self) -> None:
        """Let everything happen that is due by now."""
        self.kernel.run(self.now())

    def wait(self) -> float | None:
        """Seconds of the wall's time until something happens."""
        when = self.kernel.next()
        return None if when == math.inf else max(0.0, (when - self.now()) / self.speed)

    def blocked(self) -> None:
        """Time goes by on its own."""

    def unblocked(self) -> None:
        """Time goes by on its own."""


class VirtualClock:
    """Time that only moves when it is told to, or when every client waits.

    A client that is to be waited for works within `client()` and sleeps with `sleep()`.  Of all of
    them one runs at a time, in an order that is always the same: the same clients give the same
    history.  With `clients`, nothing moves until so many have come.  With no client at all, a
    request that has to wait moves time by itself.
    """

    def __init__(self, start: float = EPOCH, *, clients: int = 0) -> None:
        self.lock = threading.RLock()
        self.kernel = Kernel(start)
        self._awaited = clients
        self._clients = 0
        self._pending = 0
        self._sleepers: list[tuple[float, int, int, Callable[[], None]]] = []
        self._number = 0
        self._own = threading.local()

    def now(self) -> float:
        """Simulated seconds since 1970."""
        return self.kernel.now

    def advance(self, seconds: float) -> None:
        """Move on by so much."""
        with self.lock:
            self.kernel.run(self.kernel.now + seconds)

    def jump(self) -> bool:
        """Move on to the next thing that happens; False when nothing will."""
        with self.lock:
            when = self.kernel.next()
            if when < math.inf:
                self.kernel.run(when)
            return when < math.inf

    @contextmanager
    def client(self, order: int = 0) -> Iterator[None]:
        """Time stands still as long as this client does something.

        Of several that are to go on at the same moment, the one of the lowest order goes first.
        """
        self._own.order = order
        with self.lock:
            self._clients += 1
            self._awaited -= 1
        try:
            self.sleep(0.0)  # one at a time, from the first step on
            yield
        finally:
            with self.lock:
                self._clients -= 1
                self._move()

    def sleep(self, seconds: float) -> None:
        """Wait in simulated time."""
        woken = threading.Event()
        with self.lock:
            self._number += 1
            order = getattr(self._own, "order", 0)
            when = self.kernel.now + seconds
            heapq.heappush(self._sleepers, (when, order, self._number, woken.set))
            self._move()
        woken.wait()

    def settle(self) -> None:
        """Let everything happen that is due by now."""
        self.kernel.run(self.kernel.now)

    def wait(self) -> float | None:
        """Waiting is no use: time moves when clients wait."""
        return None

    def blocked(self) -> None:
        """A request could not be answered at once."""
        with self.lock:
            self._pending += 1
            self._move()

    def unblocked(self) -> None:
        """It was answered: its client runs again."""
        with self.lock:
            self._pending -= 1

    def _move(self) -> None:
        """Move on until somebody runs again, if nobody does and all have come."""
        while (self._sleepers or self._pending) and self._awaited <= 0:
            if self._clients - len(self._sleepers) - self._pending > 0:
                return
            event = self.kernel.next()
            sleeper = self._sleepers[0][0] if self._sleepers else math.inf
            if min(event, sleeper) == math.inf:
                return
            if event <= sleeper:
                self.kernel.step()
                continue
            wake = heapq.heappop(self._sleepers)[3]
            self.kernel.run(sleeper)
            wake()
            return
