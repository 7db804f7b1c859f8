"""A small event loop: tasks are generators that yield what they wait for.

One thread, so that forking stays safe, and no import worth mentioning, so that it stays cheap.
"""

from __future__ import annotations

import heapq
import os
import selectors
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


@dataclass(frozen=True, slots=True)
class Ready:
    """Wait until a file is ready; gives False when `seconds` pass first."""

    fd: int
    events: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """Wait until a child process ends; gives its wait status, or None when `seconds` pass first."""

    pid: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for some time."""

    seconds: float


class Turn:
    """Lets one task at a time do something: `yield turn`, and `turn.give()` afterwards."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._taken = False
        self._queue: deque[_Running] = deque()

    def take(self, running: _Running) -> None:
        """Resume the task once it is its turn."""
        if self._taken:
            self._queue.append(running)
        else:
            self._taken = True
            self._loop.resume(running, value=True)

    def give(self) -> None:
        """Let the next one in."""
        if self._queue:
            self._loop.resume(self._queue.popleft(), value=True)
        else:
            self._taken = False


Wait = Ready | Exit | Pause | Turn
Task = Generator[Wait, Any, Any]


class _Running:
    """A task, and how often it has been resumed, so that an outdated timer is recognised."""

    __slots__ = ("fd", "pid", "serial", "task")

    def __init__(self, task: Task) -> None:
        self.task = task
        self.serial = 0
        self.fd = -1
        self.pid = 0


class Loop:
    """Runs tasks until `stop` is called."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._selector = selectors.DefaultSelector()
        self._due: deque[tuple[_Running, Any]] = deque()
        self._timers: list[tuple[float, int, _Running, int]] = []
        self._timer_count = 0
        self._children: dict[int, list[_Running]] = {}
        self._watches: dict[int, Callable[[], None]] = {}
        self._running = True
        self._wake, wake = socket.socketpair()
        self._wake.settimeout(0)
        wake.settimeout(0)
        self._wake_keep = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._selector.register(self._wake, READ, None)

    def spawn(self, task: Task) -> None:
        """Run a task beside the others."""
        self.resume(_Running(task), value=None)

    def watch(self, pid: int, ended: Callable[[], None]) -> None:
        """Call `ended` the moment a child is no more, before any task can run."""
        self._watches[pid] = ended

    def stop(self) -> None:
        """Return from `run` soon."""
        self._running = False

    def resume(self, running: _Running, *, value: object) -> None:
        """Let a waiting task go on with what its `yield` gives."""
        running.serial += 1
        if running.fd >= 0:
            self._selector.unregister(running.fd)
            running.fd = -1
        if running.pid:
            waiting = self._children.get(running.pid, [])
            if running in waiting:
                waiting.remove(running)
            running.pid = 0
        self._due.append((running, value))

    def run(self) -> None:
        """Run until stopped."""
        while self._running:
            while self._due:
                self._step(*self._due.popleft())
            if not self._running:
                return
            for key, _ in self._selector.select(self._patience()):
                if key.data is None:
                    self._reap()
                else:
                    self.resume(key.data, value=True)
            self._ring()

    def _step(self, running: _Running, value: object) -> None:
        try:
            wait = running.task.send(value)
        except StopIteration:
            return
        except Exception:  # noqa: BLE001 - the keeper outlives any single request
            self._log(traceback.format_exc())
            return
        self._park(running, wait)

    def _park(self, running: _Running, wait: Wait) -> None:
        if isinstance(wait, Turn):
            wait.take(running)
            return
        if isinstance(wait, Ready):
            running.fd = wait.fd
            self._selector.register(wait.fd, wait.events, running)
        elif isinstance(wait, Exit):
            running.pid = wait.pid
            self._children.setdefault(wait.pid, []).append(running)
        if wait.seconds is not None:
            self._timer_count += 1
            when = time.monotonic() + wait.seconds
            heapq.heappush(self._timers, (when, self._timer_count, running, running.serial))

    def _patience(self) -> float | None:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _ring(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, running, serial = heapq.heappop(self._timers)
            if running.serial == serial:
                self.resume(running, value=None if running.pid else False)

    def _reap(self) -> None:
        try:
            while self._wake.recv(4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if ended := self._watches.pop(pid, None):
                ended()
            for running in self._children.pop(pid, []):
                running.pid = 0
                self.resume(running, value=status)
