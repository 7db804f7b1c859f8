"""Uses of gates: what the store keeps of who has begun what, for jobs of one site."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from essaim.drivers.proxmox import tasks
from essaim.drivers.proxmox.api import Api
from essaim.drivers.proxmox.jobs import Job
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
    """Who uses what at a site.  All processes see the same."""

    def __init__(self, api: Api, limits: Limits, site: str, online: Callable[[str], bool]) -> None:
        self._api = api
        self._limits = limits
        self._prefix = f"{site} "
        self._online = online

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
            if self.is_over(use.task) if use.task else use.seconds > _LEFT_ALONE:
                self._limits.free(use.holder)
            else:
                done = False
        return done

    def is_over(self, upid: str) -> bool:
        """Whether a task has ended, or died with its node."""
        if tasks.end_of(self._api, upid) is not None:
            return True
        its = tasks.read_upid(upid)
        return its is not None and not self._online(its.node)


def _at_work(job: Job | None) -> bool:
    """Whether a use is a job's own: one that waits may wait for what its dead forerunner left."""
    return job is not None and job.since > 0 and not job.over
