"""Uses of gates: what the store keeps of who has begun what, for jobs of one site."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from essaim.drivers.proxmox import tasks
from essaim.drivers.proxmox.api import Api
from essaim.drivers.proxmox.jobs import Job
from essaim.drivers.proxmox.refusals import Refusal, sort_end
from essaim.drivers.proxmox.task_list import TaskList
from essaim.plan.limits import Gate

#: Seconds after which a use without a task was left by somebody who died before they began it: more
#: than the API may take to answer.
_LEFT_ALONE = 45.0


class Limits(Protocol):
    """What the store keeps of gates; see `store.limits`."""

    def take(self, asks: Sequence[Any]) -> list[Any]:
        """Let each pass, or say which gate is full."""

    def bind(self, holder: str, task: str) -> None:
        """Write down a task."""

    def free(
        self, holder: str, gates: Sequence[Gate] = (), *, refused: frozenset[str] | None = None
    ) -> None:
        """Give back what the holder uses."""

    def uses(self, prefix: str) -> list[Any]:
        """List who uses what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Somebody who wants to pass some gates; read by the store."""

    holder: str
    gates: tuple[Gate, ...]
    number: tuple[str, str, str, int] | None = None


class Uses:
    """Who uses what at a site.  All processes see the same.

    `up` lists the nodes that answer.
    """

    def __init__(
        self, api: Api, limits: Limits, site: str, up: Callable[[], Collection[str]]
    ) -> None:
        self.tasks = TaskList(api)
        #: The VMID of the machine that somebody makes under a key; None when nobody does.
        self.number: Callable[[str], int | None] = lambda _key: None
        #: Whether this process itself has asked for that, and got no answer.
        self.unanswered: Callable[[str], bool] = lambda _key: False
        #: Called with a key when the task that made its machine died.
        self.died: Callable[[str], None] = lambda _key: None
        self._api = api
        self._limits = limits
        self._prefix = f"{site} "
        self._up = up

    def gate(self, name: str) -> str:
        """What people call a gate."""
        return name.removeprefix(self._prefix)

    def take(self, jobs: list[Job]) -> list[Any]:
        """Let each pass its gates, or say which is full, or that it must not begin."""
        asks = [
            Pass(holder=self._prefix + job.key, gates=job.gates, number=job.number)
            for job in jobs
            if job.gates
        ]
        answers = iter(self._limits.take(asks) if asks else [])
        return [next(answers) if job.gates else True for job in jobs]

    def bind(self, job: Job, upid: str) -> None:
        """Write down which task it is."""
        self._limits.bind(self._prefix + job.key, upid)

    def free(self, job: Job, learnt: frozenset[str] | None) -> None:
        """Give back what a job used; `learnt` are the gates that let too many pass."""
        self._limits.free(self._prefix + job.key, job.gates, refused=learnt)

    def reap(self, jobs: Mapping[str, Job], only: str = "") -> bool:
        """Free the uses whose task has ended, of all others, or of one; False when some go on."""
        done = True
        for use in self._limits.uses(self._prefix + only):
            key = use.holder.removeprefix(self._prefix)
            if _at_work(jobs.get(key)) or (only and key != only):
                continue
            end = self.end_of(use.task) if use.task else self._end_of_unbound(key, use.seconds)
            if end is None:
                done = False
                continue
            if end and sort_end(end) is Refusal.LOST:
                self.died(key)
            self._limits.free(use.holder)
        return done

    def end_of(self, upid: str) -> str | None:
        """How a task has ended, also with its node; None while it goes on."""
        end = tasks.end_of(self._api, upid)
        its = tasks.read_upid(upid)
        if end is None and its is not None and its.node not in self._up():
            return f"connection refused: node {its.node} does not answer"
        return "" if end is not None and tasks.went_well(end) else end

    def _end_of_unbound(self, key: str, seconds: float) -> str | None:
        """How that has ended which somebody began who died before they wrote down its task.

        Whether it was begun at all only the lists of tasks tell.
        """
        if seconds <= _LEFT_ALONE and not self.unanswered(key):
            return None
        number = self.number(key)
        if number is None:
            return ""
        if self.is_being_made(number):
            return None
        return "unexpected status" if self.has_died(number, seconds) else ""

    def is_being_made(self, number: int) -> bool:
        """Whether a task of ours that nobody wrote down may be making that VMID."""
        return bool(self.tasks.making(self._up(), number) - self._known())

    def somebody_makes(self, number: int) -> bool:
        """Whether anybody may be making that VMID, as far as this account sees their tasks."""
        return bool(self.tasks.making(self._up(), number, anyone=True))

    def has_died(self, number: int, seconds: float) -> bool:
        """Whether such a task died in the last so many seconds."""
        return bool(self.tasks.died(self._up(), number, seconds) - self._known())

    def _known(self) -> set[str]:
        return {use.task for use in self._limits.uses(self._prefix) if use.task}


def _at_work(job: Job | None) -> bool:
    """Whether a use is a job's own: one that waits may wait for what its dead forerunner left."""
    return job is not None and job.since > 0 and not job.over
