"""Jobs: what takes long on a cluster, and the gates that only so many of them pass at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from essaim.drivers.proxmox.refusals import locked_where
from essaim.drivers.proxmox.tasks import Usual
from essaim.plan.limits import Gate

#: Seconds until a caller comes back: at least, at most.
_SOONEST, _LATEST = 0.1, 60.0
#: Seconds something takes of which none has ended yet.
_UNKNOWN = 1.0
#: As long as nothing is known, so many callers come back in a second.
_RUSH = 50
#: Jobs in line ahead of one that is told to come back in time rather than early.
_CLOSE = 6
#: The share of what it may take after which any other comes back.
_EARLY = 0.85
#: Seconds between two looks at a task: at least, at most.
_OFTEN, _SELDOM = 0.03, 1.0
#: The share of what something takes after which it is tried again when it was locked.
_RESPITE = 0.28
#: The share of its time after which a task is looked at again: when others wait for it to end,
#: when nobody does, and when none of its kind has ended yet.
_KEEN, _CALM, _BLIND = 0.012, 0.12, 0.1


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
    storage: str = ""  #: where it puts disks
    rivals: tuple[str, ...] = ()  #: gates it might stand in line at instead of its first one
    upid: str = ""
    since: float = 0.0  #: when it was begun
    look: float = 0.0  #: when it is looked at next
    seen: float = 0.0  #: when it was last seen to go on
    wanted: float = 0.0  #: until when somebody will come back for it
    hurry: float = 0.0  #: not to be begun before
    refused: int = 0  #: how often it was locked
    over: bool = False
    void: bool = False  #: over because it was not for this process to do
    error: Exception | None = None
    locked: str = ""  #: why it was refused last, for people


def refused_gates(job: Job, error: Exception) -> frozenset[str]:
    """Which of a job's gates let too many pass, as far as the error tells."""
    storage, guest = locked_where(str(error))
    named = job.sources.get(storage) if storage else job.sources.get(str(guest or "guest"))
    return frozenset({named}) if named else frozenset(gate.name for gate in job.gates[:1])


def next_look(job: Job, usual: Usual | None, now: float, wanted: Collection[str]) -> float:
    """When a task under way is worth a look: a little before it should end, then often.

    `wanted` are gates that others wait at: each moment the task is over unseen is lost to them.
    """
    gone = now - job.since
    if usual is None:
        return now + _within(_BLIND * gone)
    keen = any(gate.name in wanted for gate in job.gates)
    end = usual.seconds - 2 * usual.spread if keen else usual.seconds + usual.spread
    return max(job.since + end, now + step(usual, gone, keen=keen))


def step(usual: Usual, gone: float, *, keen: bool) -> float:
    """Seconds between two looks at something that has gone on for so long."""
    late = max(0.0, gone - usual.seconds - 2 * usual.spread)
    share = max(_KEEN * usual.seconds, usual.spread / 2) if keen else _CALM * usual.seconds
    return _within(share + _BLIND * late)


def _within(seconds: float) -> float:
    return min(max(seconds, _OFTEN), _SELDOM)


def lasted(job: Job, usual: Usual | None, now: float) -> float:
    """How long something took that was just found to be over: it ended since the last look."""
    longest = now - job.since
    unseen = now - max(job.seen, job.since)
    if usual is not None:  # found at the first look: it may have ended any time before
        unseen = min(unseen, 2 * step(usual, longest, keen=True))
    return longest - unseen / 2


def wanted_gates(jobs: Iterable[Job]) -> set[str]:
    """Gates that somebody waits at."""
    return {gate.name for job in jobs if not (job.since or job.over) for gate in job.gates}


def patience(job: Job, jobs: Iterable[Job], expected: Usual | None, now: float) -> float:
    """Seconds after which it is worth asking for a job again."""
    usual = expected.seconds if expected else _UNKNOWN
    if job.since:
        doubt = 2 * expected.spread if expected else usual / 8
        left = usual + doubt - (now - job.since)
        return min(max(left, min(doubt, usual / 8), _SOONEST), _LATEST)
    ahead, working = line(job, jobs)
    if expected is None:
        return min(_UNKNOWN + ahead / _RUSH, _LATEST)
    whole = (ahead / max(1, working) + 1) * usual + max(0.0, job.hurry - now)
    # To come back a little early costs a call, to come back late costs the machine's time.
    return min(max(whole * (1 if ahead < _CLOSE else _EARLY), _SOONEST), _LATEST)


def respite(job: Job, usual: Usual | None) -> float:
    """Seconds until something that was locked is tried again: longer each time."""
    job.refused += 1
    first = max(_RESPITE * (usual.seconds if usual else 1.0), _OFTEN)
    return min(first * 1.5 ** min(job.refused, 12), 4 * _SELDOM)


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


def tell(job: Job, full: Mapping[str, str], now: float) -> str:
    """What a person reads while they wait; `full` says what of each gate that is full."""
    if job.since:
        return f"{job.what} ({now - job.since:.0f} s so far)"
    if job.locked and job.hurry > now:
        return job.locked
    closed = (full[gate.name] for gate in job.gates if gate.name in full)
    return next(closed, job.locked or f"{job.what} soon")


def open_to(waiting: Iterable[Job], closed: set[str], most: int) -> list[Job]:
    """The first of those who wait at no gate that is known to be full."""
    found = []
    for job in waiting:
        if not any(gate.name in closed for gate in job.gates):
            found.append(job)
            if len(found) == most:
                break
    return found
