"""The default courier: threads of this process.

Idle threads sleep; one of them, the watcher, sleeps only until a run is due.  When a thread finds
a run and carries it for more than a moment, another becomes the watcher.  So short runs are
carried by few threads, which fight less over the database, and slow ones soon have one each.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Protocol

from essaim.model.errors import EssaimError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

#: How often the journal is asked for runs that other processes have added.
LOOK_EVERY = 1.0

#: A due run that could not be had is locked by somebody for a moment.
LOOK_SOON = 0.005

#: How long a run may be carried before another thread looks for more.
HAND_OVER = 0.002

#: How often a condition is looked at while runs move fast: at first, and once it has taken long,
#: as a share of the time it has taken so far.
CHECK_EVERY, CHECK_SHARE, CHECK_SELDOM = 0.02, 0.01, 0.25


class Works(Protocol):
    """What the courier needs of an engine."""

    def work(self, claimed: Callable[[], None] | None = None) -> bool | float:
        """Carry one due run and return True, or return the seconds until one is due."""

    def settled(self, run: str) -> bool:
        """Say whether nothing will move the run by itself."""

    def stop(self) -> None:
        """Claim no more, and hand runs back after their current step."""

    def close(self) -> None:
        """Let go of everything."""


class ThreadCourier:
    """Carries due runs in up to `threads` threads, which are made as they are needed."""

    def __init__(self, engine: Works, threads: int = 32) -> None:
        self._engine = engine
        self._most = threads
        self._lock = threading.RLock()
        self._watch = threading.Condition(self._lock)  # the watcher sleeps here
        self._turn = threading.Condition(self._lock)  # the other idle threads sleep here
        self._moved = threading.Condition(self._lock)  # callers of `wait` sleep here
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._watcher: threading.Thread | None = None
        self._look_at = math.inf  # monotonic time at which the watcher looks for due runs
        self._wakes = 0
        self._moves = 0
        self._stopping = False
        self._trouble = ""

    def wake(self, run_id: str | None = None) -> None:  # noqa: ARG002 - others route by it
        """Look for due runs now.  Say it after adding runs; it never hurts."""
        with self._lock:
            self._wakes += 1
            self._look_by(0.0)

    def wait(self, until: str | Callable[[], bool], timeout: float | None = None) -> bool:
        """Work until a run is over or stuck, or until a condition holds; False when it does not.

        Returns False after `timeout` seconds, or once all has come to a halt after `interrupt`.
        """
        done = functools.partial(self._engine.settled, until) if isinstance(until, str) else until
        began = time.monotonic()
        deadline = math.inf if timeout is None else began + timeout
        self.wake()
        while True:
            with self._lock:
                moves = self._moves
                ended = self._stopping and not self._threads
            if done():
                return True
            if ended or time.monotonic() >= deadline:
                return False
            pause = CHECK_SHARE * (time.monotonic() - began)
            self._await_move(moves, deadline, min(max(pause, CHECK_EVERY), CHECK_SELDOM))

    def _await_move(self, moves: int, deadline: float, pause: float) -> None:
        time.sleep(pause)  # runs may move a thousand times a second: look at some of it
        with self._lock:
            if self._moves == moves and not (self._stopping and not self._threads):
                left = deadline - time.monotonic()
                self._moved.wait(max(0.0, min(left, LOOK_EVERY)))

    def interrupt(self) -> None:
        """Begin to stop, without waiting."""
        self._engine.stop()
        with self._lock:
            self._stopping = True
            for condition in (self._watch, self._turn, self._moved):
                condition.notify_all()

    def stop(self, *, hand_back: bool = True, grace: float = 30.0) -> bool:
        """Claim no more and let running steps end; return whether all did within `grace` seconds.

        What is left is ready for a later worker.  Without `hand_back` nothing is waited for: runs
        being carried are left to their leases.
        """
        self.interrupt()
        deadline = time.monotonic() + (grace if hand_back else 0.0)
        with self._lock:
            while self._threads and (left := deadline - time.monotonic()) > 0:
                self._moved.wait(left)
            ended = not self._threads
        if ended:
            self._engine.close()
        return ended

    def _loop(self) -> None:
        try:
            while self._await_turn():
                while self._look():
                    pass
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
                self._moved.notify_all()

    def _await_turn(self) -> bool:
        """Sleep until it is time to look; False when all is to end."""
        me = threading.current_thread()
        with self._lock:
            self._idle += 1
            while not self._stopping:
                if self._watcher is None:
                    self._watcher = me
                if self._watcher is not me:
                    self._turn.wait()
                    continue
                left = self._look_at - time.monotonic()
                if left <= 0:
                    break
                self._watch.wait(min(left, LOOK_EVERY))
            if self._watcher is me:
                self._watcher = None
            self._idle -= 1
            self._look_at = time.monotonic() + LOOK_EVERY
            return not self._stopping

    def _look(self) -> bool:
        """Carry a due run; False when there was none, or the courier stops."""
        wakes = self._wakes
        try:
            found = self._engine.work(self._claimed)
            self._trouble = ""
        except EssaimError as error:
            # Said once, not every second: it is tried again until it works or somebody stops it.
            if error.what != self._trouble:
                log.warning("%s; trying again", error.what)
            self._trouble = error.what
            found = LOOK_EVERY
        except Exception:
            # The journal cannot be reached for now, or a step's table is wrong: neither may end
            # this thread, and leases see to what it held.
            log.exception("a run could not be carried")
            found = LOOK_EVERY
        with self._lock:
            if found is True:
                self._moves += 1
                self._moved.notify_all()
                return not self._stopping
            if wakes == self._wakes:  # else somebody has added runs since
                self._look_at = time.monotonic() + min(max(found, LOOK_SOON), LOOK_EVERY)
                self._watch.notify()
            return False

    def _claimed(self) -> None:
        with self._lock:
            self._look_by(time.monotonic() + HAND_OVER)

    def _look_by(self, when: float) -> None:
        """See that a thread looks at that time.  Call it with the lock held."""
        sooner = when < self._look_at - HAND_OVER
        self._look_at = when
        if self._watcher is not None:
            if sooner:
                self._watch.notify()
        elif self._idle:
            self._turn.notify()  # the one that comes becomes the watcher
        elif len(self._threads) < self._most and not self._stopping:
            thread = threading.Thread(target=self._loop, name="essaim-courier", daemon=True)
            self._threads.add(thread)
            thread.start()
