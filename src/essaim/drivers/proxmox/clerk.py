"""The clerk: begins what only so many may do at once, and looks after everything that takes long.

One thread for each process and site, alive while there is something to look after.  Whoever wants
something hands in a `Job` and comes back later; a job that nobody has come back for is not begun.
What a clerk has begun is written down with the limits, so that another process's clerk gives the
use back when this one dies.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from essaim.drivers.proxmox import jobs, tasks
from essaim.drivers.proxmox.api import Api, ApiError
from essaim.drivers.proxmox.jobs import Job
from essaim.drivers.proxmox.refusals import Refusal, sort_end
from essaim.drivers.proxmox.uses import Limits, Uses
from essaim.model.errors import EssaimError, NotYetError

#: Seconds by which a caller may come back late, for its turn in line and for a result.
_GRACE, _KEPT = 30.0, 10.0
#: Seconds the thread sleeps: at least, at most.
_OFTEN, _SELDOM = 0.015, 1.0
#: Seconds between looks at what dead processes have left.
_REAP_EVERY = 15.0
#: Seconds by which a task must be late, at least, before its node is suspected to be gone.
_LATE = 30.0
#: Seconds for which a gate stays full as long as none of our own jobs leaves it.
_SHUT = 0.5
#: Seconds after which a job is not begun any more, for others may have given its use back.
_STALE = 15.0
#: Threads that wait for answers, of which some take as long as a lock does.
_WIDTH = 6

log = logging.getLogger(__name__)


class Clerk:
    """Looks after the jobs of one process at one site."""

    def __init__(
        self, api: Api, limits: Limits, site: str, up: Callable[[], Collection[str]]
    ) -> None:
        self.sweep: Callable[[], None] = lambda: None  #: called now and then, while there is work
        #: Called with a job that failed; True: nobody knows what became of it, its use stays.
        self.lost: Callable[[Job, ApiError], bool] = lambda _job, _error: False
        self.durations = tasks.Durations()
        self.uses = Uses(api, limits, site, up)
        self._jobs: dict[str, Job] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._reaped = float("-inf")
        self._closed = False
        self._shut: dict[str, float] = {}  # gates that were full, and until when nobody asks
        self._told: dict[str, str] = {}  # what those read who wait at them

    def do(self, job: Job) -> bool:
        """Return when the job is done; NotYetError as long as it is not; its error if it failed.

        Called again with the same key, it is the job of the first call that counts.  False: it was
        not done here, for another process is at it, or the number it rests on is given up.
        """
        now = time.monotonic()
        with self._changed:
            new, known = job.key not in self._jobs, self._jobs.setdefault(job.key, job)
            if known.over:
                del self._jobs[job.key]
                if known.error is not None:
                    raise known.error
                return not known.void
            after = jobs.patience(known, self._jobs.values(), self._usual(known), now)
            known.wanted = now + after + _GRACE
            if new or self._thread is None:  # else the thread has it in mind already
                self._wake()
            raise NotYetError(jobs.tell(known, self._told, now), after=after)

    def get(self, key: str) -> Job | None:
        """The job of that key, under way, or over and not yet fetched."""
        return self._jobs.get(key)

    def wait(self, job: Job, within: float) -> bool:
        """Return when the job is done; NotYetError when that takes longer than so many seconds."""
        deadline = time.monotonic() + within
        while True:
            try:
                return self.do(job)
            except NotYetError:
                if time.monotonic() > deadline:
                    raise
            with self._changed:
                self._changed.wait_for(lambda: job.over or self._closed, timeout=0.5)

    def drop(self, key: str) -> bool:
        """Forget a job that has not been begun; False when it has, and goes on."""
        with self._changed:
            job = self._jobs.get(key)
            if job is None or job.over or not (job.since or job.upid):
                self._jobs.pop(key, None)
                return True
            job.wanted = time.monotonic() + _GRACE
            return False

    def clear(self, name: str) -> None:
        """Forget what was done for a machine: its next life has nothing to do with it."""
        with self._changed:
            for key in [key for key in self._jobs if key.startswith(f"{name} ")]:
                if not self._jobs[key].since or self._jobs[key].over:
                    del self._jobs[key]

    def lines(self) -> Counter[str]:
        """How many jobs are under way or stand in line, by gate."""
        with self._changed:
            alive = [job.gates for job in self._jobs.values() if not job.over]
        return Counter(gate.name for gates in alive for gate in gates)

    def leave(self, job: Job, before: int) -> bool:
        """Take a job out of its line, unless it is begun or has no more than so many before it."""
        with self._changed:
            stays = job.since or job.over or sum(jobs.line(job, self._jobs.values())) <= before
            return not stays and self._jobs.pop(job.key, None) is not None

    def close(self) -> None:
        """End the thread; tasks go on, and whoever asks next finds them."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread, pool = self._thread, self._pool
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if pool is not None:
            pool.shutdown(wait=True)

    # The thread.

    def _wake(self) -> None:
        if self._closed:
            return
        if self._thread is None:
            self._pool = self._pool or ThreadPoolExecutor(_WIDTH, "essaim-pve")
            self._thread = threading.Thread(target=self._run, name="essaim-clerk", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            try:
                self._look()
                self._reap()
                self._begin()
            except Exception as error:  # noqa: BLE001 - see below
                # Whatever it is, it must not end the thread that everybody waits for.
                known = isinstance(error, EssaimError | ApiError)
                log.log(logging.DEBUG if known else logging.ERROR, "looking after tasks: %s", error)
                time.sleep(_SELDOM / 4)
            with self._changed:
                self._forget()
                if self._closed or not any(not job.over for job in self._jobs.values()):
                    self._thread = None
                    return
                self._changed.wait(self._pause())

    def _pause(self) -> float:
        now = time.monotonic()
        times = [job.look for job in self._jobs.values() if job.upid and not job.over]
        times += [job.hurry for job in self._jobs.values() if not job.since and job.hurry > now]
        return min(max(min(times, default=now + _SELDOM) - now, _OFTEN), _SELDOM)

    def _forget(self) -> None:
        """Forget what nobody came back for: who carries the run now has a clerk of their own."""
        now = time.monotonic()
        for key, job in list(self._jobs.items()):
            late = now - job.wanted + (_GRACE - _KEPT if job.over else 0)
            if late > 0 and (job.over or not job.since):
                del self._jobs[key]

    def _look(self) -> None:
        now = time.monotonic()
        running = [job for job in list(self._jobs.values()) if job.upid and not job.over]
        if not any(job.look <= now for job in running):
            return
        found = self.uses.tasks.ends([job.upid for job in running])
        now = time.monotonic()
        wanted = jobs.wanted_gates(list(self._jobs.values()))
        for job in running:
            if job.upid in found:
                self._end(job, found[job.upid], now)
            else:
                self._look_again(job, now, wanted)

    def _look_again(self, job: Job, now: float, wanted: set[str]) -> None:
        usual, job.seen = self._usual(job), now
        job.look = jobs.next_look(job, usual, now, wanted)
        late = max(_LATE, 5 * (usual.seconds if usual else 1.0))
        if now - job.since > late and self.uses.end_of(job.upid) is not None:
            self._finish(job, ApiError(Refusal.LOST, f"{job.upid}: its node does not answer"))

    def _usual(self, job: Job) -> tasks.Usual | None:
        return self.durations.expected(job.kind)

    def _end(self, job: Job, end: str, now: float) -> None:
        if tasks.went_well(end):
            self.durations.ended(job.kind, jobs.lasted(job, self._usual(job), now))
            self._finish(job, None)
        else:
            self._finish(job, ApiError(sort_end(end), end, storage=job.storage))

    def _finish(self, job: Job, error: Exception | None) -> None:
        """End a job; what was locked is tried again, and never a failure."""
        locked = isinstance(error, ApiError) and error.kind is Refusal.LOCKED
        stays = isinstance(error, ApiError) and self.lost(job, error)
        if job.gates and not stays:
            refused = jobs.refused_gates(job, error) if locked and error else frozenset[str]()
            learnt = refused if locked or error is None else None
            with suppress(EssaimError):  # a use that stays is given back by whoever looks next
                self.uses.free(job, learnt)
            for gate in job.gates:
                self._shut.pop(gate.name, None)
                self._told.pop(gate.name, None)
        with self._changed:
            if locked:
                job.since, job.upid = 0.0, ""
                job.locked = f"{job.what}: {error}"
                job.hurry = time.monotonic() + jobs.respite(job, self._usual(job))
            else:
                job.over, job.error = True, error
            self._changed.notify_all()

    def _begin(self) -> None:
        """Begin whatever may begin now, oldest first."""
        now = time.monotonic()
        waiting = [
            job
            for job in list(self._jobs.values())
            if not (job.since or job.over) and job.hurry <= now <= job.wanted
        ]
        # Every caller wakes the clerk, and hundreds stand in line: to ask for each is dear.
        closed = {gate for gate, until in list(self._shut.items()) if until > now}
        while waiting:
            few = jobs.open_to(waiting, closed, _WIDTH)
            if not few:
                return
            answers = self.uses.take(few)
            for job, answer in zip(few, answers, strict=True):
                waiting.remove(job)
                if answer is True:
                    self._start(job)
                elif answer is False:  # another process is at it, or the machine is not wanted
                    job.over = job.void = True
                else:
                    closed.add(answer.gate)
                    self._shut[answer.gate] = now + _SHUT
                    used = f"({answer.used} of {answer.allowed} used)"
                    self._told[answer.gate] = f"waits for a {self.uses.gate(answer.gate)} {used}"

    def _start(self, job: Job) -> None:
        with self._changed:
            stays = self._jobs.get(job.key) is job
            job.since = time.monotonic() if stays else 0.0
        if not stays:  # it has left its line meanwhile
            self.uses.free(job, None)
        elif self._pool is not None:
            self._pool.submit(self._post, job)

    def _post(self, job: Job) -> None:
        if time.monotonic() - job.since > _STALE:  # this process stood still
            job.over = job.void = True
            return
        try:
            upid = job.begin()
            if job.gates:
                self.uses.bind(job, upid)
        except Exception as error:  # noqa: BLE001 - whatever it is belongs to whoever asked
            self._finish(job, error)
            return
        with self._changed:
            wanted = jobs.wanted_gates(self._jobs.values())
            job.look = jobs.next_look(job, self._usual(job), time.monotonic(), wanted)
            job.upid = upid
            self._changed.notify_all()

    def _reap(self) -> None:
        """Give back what was used by processes that died: at first, now and then, and at last."""
        now = time.monotonic()
        idle = all(job.over for job in list(self._jobs.values()))
        if now - self._reaped < _REAP_EVERY and not idle:
            return
        self._reaped = now
        self.reap()
        self.sweep()

    def reap(self, only: str = "") -> bool:
        """Free the uses whose task has ended, of all others, or of one; False when some go on."""
        return self.uses.reap(self._jobs, only)
