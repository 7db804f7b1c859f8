"""Processes in simulated time: they sleep, wait for locks and share what works for them.

A process is a generator.  What it yields is a `Wait`; it goes on when that is over, or gets the
error the wait ended with.  All of it happens in order of simulated time, then of arrival, so that
the same calls give the same history.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

from essaim_lab.simulators.proxmox.errors import PveError

Process = Generator["Wait", None, Any]
Resume = Callable[[PveError | None], None]


class Wait(Protocol):
    """Something a process can wait for."""

    def begin(self, kernel: Kernel, resume: Resume) -> None:
        """Arrange that `resume` is called once, now or later."""


class Kernel:
    """The queue of what happens next, and when."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.defects: list[BaseException] = []  #: errors of the simulation itself

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Do it at that time."""
        self._number += 1
        heapq.heappush(self._queue, (when, self._number, act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do it after so many seconds."""
        self.at(self.now + seconds, act)

    def next(self) -> float:
        """When the next thing happens; infinity when nothing does."""
        return self._queue[0][0] if self._queue else math.inf

    def run(self, until: float) -> None:
        """Let everything happen that is due by then."""
        while self._queue and self._queue[0][0] <= until:
            self.step()
        self.now = max(self.now, until)

    def step(self) -> None:
        """Let the next thing happen, and nothing else."""
        if self._queue:
            when, _, act = heapq.heappop(self._queue)
            self.now = max(self.now, when)
            act()

    def spawn(self, process: Process, done: Callable[[Any, PveError | None], None]) -> Running:
        """Start a process; `done` is told its result or its error, unless it is killed."""
        running = Running(self, process, done)
        running.step(None)
        return running


class Running:
    """A process under way."""

    def __init__(
        self, kernel: Kernel, process: Process, done: Callable[[Any, PveError | None], None]
    ) -> None:
        self._kernel = kernel
        self._process = process
        self._done = done
        self._turn = 0
        self.over = False

    def step(self, error: PveError | None) -> None:
        """Go on to the next wait."""
        self._turn += 1
        turn = self._turn

        def resume(failed: PveError | None = None) -> None:
            if not self.over and turn == self._turn:
                self.step(failed)

        try:
            wait = self._process.throw(error) if error else next(self._process)
        except StopIteration as end:
            self.over = True
            self._done(end.value, None)
        except PveError as failed:
            self.over = True
            self._done(None, failed)
        except Exception as defect:  # noqa: BLE001 - time must go on for everybody else
            self.over = True
            self._kernel.defects.append(defect)
            self._done(None, PveError(f"the simulator has a defect: {defect!r}"))
        else:
            wait.begin(self._kernel, resume)

    def kill(self) -> None:
        """End it as kill -9 does: files it has locked are free again, nothing is tidied up."""
        self.over = True
        self._process.close()

    def interrupt(self, message: str) -> None:
        """End it as a signal does that it handles: it tidies up and fails with the message."""
        if not self.over:
            self.step(PveError(message))


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for some seconds."""

    seconds: float

    def begin(self, kernel: Kernel, resume: Resume) -> None:
        """Arrange to be woken."""
        kernel.after(self.seconds, lambda: resume(None))


class Lock:
    """A file that several may hold shared, or one alone; who waits is served in turn."""

    def __init__(self) -> None:
        self._holders: list[_Hold] = []
        self._queue: deque[_Hold] = deque()

    def take(self, timeout: float, message: str, *, shared: bool = False) -> _Hold:
        """Wait for it; after `timeout` seconds `message` is the error.  To be given back."""
        return _Hold(self, timeout, message, shared=shared)

    @property
    def taken(self) -> bool:
        """Whether anybody has it or waits for it."""
        return bool(self._holders or self._queue)

    def _admit(self) -> None:
        while self._queue:
            first = self._queue[0]
            alone = not self._holders
            if not (alone or (first.shared and all(hold.shared for hold in self._holders))):
                return
            self._queue.popleft()
            self._holders.append(first)
            first.got()

    def _leave(self, hold: _Hold) -> None:
        for held in (self._holders, self._queue):
            if hold in held:
                held.remove(hold)
        self._admit()


class _Hold:
    """One holder, or one who would like to be."""

    def __init__(self, lock: Lock, timeout: float, message: str, *, shared: bool) -> None:
        self.shared = shared
        self._lock = lock
        self._timeout = timeout
        self._message = message
        self._has = False
        self._resume: Resume | None = None
        self._kernel: Kernel

    def begin(self, kernel: Kernel, resume: Resume) -> None:
        """Stand in line."""
        self._kernel = kernel
        self._resume = resume
        self._lock._queue.append(self)  # noqa: SLF001 - the two are one thing
        self._lock._admit()  # noqa: SLF001 - the two are one thing
        if not self._has:
            kernel.after(self._timeout, self._give_up)

    def got(self) -> None:
        """It is ours; whoever waits goes on in the same instant."""
        self._has = True
        resume = self._resume
        if resume:
            self._kernel.at(self._kernel.now, lambda: resume(None))

    def _give_up(self) -> None:
        if not self._has and self._resume:
            resume, self._resume = self._resume, None
            self.give_back()
            resume(PveError(self._message))

    def give_back(self) -> None:
        """Let the next one have it.  Nothing if it is not ours any more."""
        self._resume = None
        self._lock._leave(self)  # noqa: SLF001 - the two are one thing


class Station:
    """Something that does `capacity` jobs at full speed, and more of them slower: it is shared."""

    def __init__(self, kernel: Kernel, capacity: float) -> None:
        self._kernel = kernel
        self.capacity = capacity
        self._served = 0.0  # seconds of work each job has been given since the beginning
        self._since = kernel.now
        self._jobs: list[tuple[float, int, Resume]] = []
        self._number = 0
        self._plan = 0

    def work(self, seconds: float) -> Work:
        """A job that takes so long when there is room."""
        return Work(self, seconds)

    def add(self, seconds: float, resume: Resume) -> Callable[[], None]:
        """Begin a job; gives what takes it away again."""
        self._catch_up()
        self._number += 1
        job = (self._served + seconds, self._number, resume)
        heapq.heappush(self._jobs, job)
        self._arrange()

        def withdraw() -> None:
            if job in self._jobs:
                self._catch_up()
                self._jobs.remove(job)
                heapq.heapify(self._jobs)
                self._arrange()

        return withdraw

    @property
    def busy(self) -> int:
        """How many jobs it has."""
        return len(self._jobs)

    def _rate(self) -> float:
        return min(1.0, self.capacity / len(self._jobs)) if self._jobs else 0.0

    def _catch_up(self) -> None:
        self._served += (self._kernel.now - self._since) * self._rate()
        self._since = self._kernel.now

    def _arrange(self) -> None:
        self._plan += 1
        if self._jobs:
            plan, left = self._plan, max(0.0, self._jobs[0][0] - self._served)
            self._kernel.after(left / self._rate(), lambda: self._finish(plan))

    def _finish(self, plan: int) -> None:
        if plan != self._plan:
            return  # others came or went meanwhile: another time was arranged
        self._catch_up()
        self._served = max(self._served, self._jobs[0][0])
        ready = []
        while self._jobs and self._jobs[0][0] <= self._served + 1e-9:
            ready.append(heapq.heappop(self._jobs)[2])
        self._arrange()
        for resume in ready:
            resume(None)


class Work:
    """A job at a station; `withdraw` when whoever gave it is gone."""

    def __init__(self, station: Station, seconds: float) -> None:
        self._station = station
        self._seconds = seconds
        self.withdraw: Callable[[], None] = lambda: None

    def begin(self, kernel: Kernel, resume: Resume) -> None:  # noqa: ARG002 - the station knows it
        """Hand it in."""
        self.withdraw = self._station.add(self._seconds, resume)
