"""Jobs: what takes long on a cluster, and the gates that only so many of them pass at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from essaim.drivers.proxmox.refusals import locked_where
from essaim.plan.limits import Gate

#: Seconds until a caller comes back: at least, at most.
_SOONEST, _LATEST = 0.1, 60.0
#: Seconds something takes of which none has ended yet.
_UNKNOWN = 1.0
#: As long as nothing is known, so many callers come back in a second.
_RUSH = 50
#: Jobs in line ahead of one that is told to come back in time rather than early.
_CLOSE = 6


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """Something that takes long: `begin` gives the name of its task."""

    key: str  #: who does what: one job for each
    what: str  #: what a person reads: "clones debian-gui"
    kind: str  #: jobs of one kind take about as long
    begin: Callable[[], str]
    gates: tuple[Gate, ...] = ()
    number: tuple[str, str, str, int] | None = None  #: a reservation without which it is void
    sources: Mapping[str, str] = field(default_factory=dict)  #: gate for a storage or a guest's id
    upid: str = ""
    since: float = 0.0  #: when it was begun
    look: float = 0.0  #: when it is looked at next
    wanted: float = 0.0  #: until when somebody will come back for it
    hurry: float = 0.0  #: not to be begun before
    refused: int = 0  #: how often it was locked
    over: bool = False
    void: bool = False  #: over because it was not for this process to do
    error: Exception | None = None
    full: str = ""  #: which gate was full, for people


def refused_gates(job: Job, error: Exception) -> frozenset[str]:
    """Which of a job's gates let too many pass, as far as the error tells."""
    storage, guest = locked_where(str(error))
    named = job.sources.get(storage) if storage else job.sources.get(str(guest or "guest"))
    return frozenset({named}) if named else frozenset(gate.name for gate in job.gates[:1])


def patience(job: Job, jobs: Iterable[Job], expected: float | None, now: float) -> float:
    """Seconds after which it is worth asking for a job again."""
    usual = expected or _UNKNOWN
    if job.since:
        left = usual - (now - job.since)
        return min(max(left, usual / 8, _SOONEST), _LATEST)
    ahead, working = line(job, jobs)
    if expected is None:
        return min(_UNKNOWN + ahead / _RUSH, _LATEST)
    whole = (ahead / max(1, working) + 1) * usual + max(0.0, job.hurry - now)
    # To come back a little early costs a call, to come back late costs the machine's time.
    return min(max(whole * (1 if ahead < _CLOSE else 0.7), _SOONEST), _LATEST)


def line(job: Job, jobs: Iterable[Job]) -> tuple[int, int]:
    """How many stand in line before a job, and how many are under way, at the same gates."""
    ahead, working, passed = 0, 0, False
    for other in jobs:
        passed = passed or other is job
        if other.over or other.gates != job.gates:
            continue
        working += bool(other.since)
        ahead += not other.since and not passed
    return ahead, working


def tell(job: Job, now: float) -> str:
    """What a person reads while they wait."""
    if job.since:
        return f"{job.what} ({now - job.since:.0f} s so far)"
    return job.full or f"{job.what} soon"


def open_to(waiting: Iterable[Job], closed: set[str], most: int) -> list[Job]:
    """The first of those who wait at no gate that is known to be full."""
    found = []
    for job in waiting:
        if not any(gate.name in closed for gate in job.gates):
            found.append(job)
            if len(found) == most:
                break
    return found
