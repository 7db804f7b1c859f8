"""How many replicas there should be, decided from what was measured and the time.

Load is counted in full replicas: 1.9 is the work of two that are nearly busy.  What was measured
gives two bounds of it.  More replicas are made when the load is certainly too much for those there
are, and fewer only when it is certainly little, and has been for a while.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is wanted of the replicas of one service, and how patient to be."""

    fewest: int = 1
    most: int = 6
    target: float = 0.6  #: how busy each replica should be, of 1
    band: float = 0.1  #: so much of the target around it is as good as the target
    interval: float = 5.0  #: seconds between two looks
    rise: float = 15.0  #: seconds whose mean load must be too much
    fall: float = 180.0  #: seconds in which the load must not have been more than little
    cooldown: float = 30.0  #: seconds after a change in which there is no other
    warm_up: float = 20.0  #: seconds in which the work of a new replica is its own starting
    up: int = 2  #: most replicas that are added at a time
    down: int = 1  #: most that are removed at a time
    patience: float = 30.0  #: seconds a due run may wait before there should be one more worker

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        checks = {
            "there must be at least one replica": self.fewest >= 1,
            "the most must not be less than the fewest": self.most >= self.fewest,
            "the target must be above 0 and at most 1": 0 < self.target <= 1,
            "the band must be at least 0 and below 1": 0 <= self.band < 1,
            "looks must be some time apart": self.interval > 0,
            "times must not be negative": min(self.rise, self.cooldown, self.warm_up) >= 0,
            "falling must not be quicker than rising": self.fall >= self.rise,
            "a step is at least one replica": min(self.up, self.down) >= 1,
        }
        if wrong := [said for said, holds in checks.items() if not holds]:
            raise ValueError("; ".join(wrong))

    @property
    def gap(self) -> float:
        """Seconds without a sample after which something was missed."""
        return 3 * self.interval

    @property
    def horizon(self) -> float:
        """Seconds of history that a decision can depend on."""
        return max(self.rise, self.fall, self.cooldown) + 2 * self.gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was known of a service at one moment."""

    at: int  #: milliseconds since 1970
    wanted: int  #: replicas that were wanted then
    low: float | None  #: the load is certainly not less; None when nothing could be measured
    high: float | None  #: the load is certainly not more; None when that cannot be said
    pressing: bool = False  #: something has waited too long


@dataclass(frozen=True, slots=True)
class Decision:
    """How many replicas there should be, and why, in words."""

    replicas: int
    reason: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of one replica."""

    use: float | None  #: how busy it was since the sample before, of 1; None when not known
    age: float  #: seconds since it was started


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is known of the work that workers have, and that waits for them."""

    running: int
    waiting: int  #: due, and taken by nobody
    oldest: float = 0.0  #: seconds that the one due for longest has waited


def of_readings(readings: Sequence[Reading], *, at: int, wanted: int, policy: Policy) -> Sample:
    """Make a sample of how busy replicas are.

    What a replica does just after its start is not work: it may be idle or full, for all we know.
    """
    old = [each for each in readings if each.age >= policy.warm_up]
    known = [each.use for each in old if each.use is not None]
    low = sum(known) if known or not old else None
    # One that says nothing may be the one that has all the work.
    sure = low is not None and len(known) == len(old) and bool(readings)
    high = low + len(readings) - len(old) if sure and low is not None else None
    return Sample(at=at, wanted=wanted, low=low if readings else None, high=high)


def of_backlog(backlog: Backlog, *, at: int, wanted: int, each: int = 1, policy: Policy) -> Sample:
    """Make a sample of what there is to do for workers that carry `each` runs at a time."""
    load = (backlog.running + backlog.waiting) / each
    pressing = backlog.waiting > 0 and backlog.oldest > policy.patience
    return Sample(at=at, wanted=wanted, low=load, high=load, pressing=pressing)


def decide(history: Sequence[Sample], policy: Policy, now: int) -> Decision:
    """Say how many replicas there should be.  The samples are of one service, the oldest first."""
    past = [sample for sample in history if sample.at <= now]
    if not past:
        return Decision(policy.fewest, "nothing has been measured yet")
    current = past[-1].wanted
    bounded = min(max(current, policy.fewest), policy.most)
    if bounded != current:
        return Decision(bounded, f"{current} is not within {policy.fewest} to {policy.most}")
    if (left := _cooling(past, policy, now)) > 0:
        return Decision(current, f"was changed lately; nothing more is changed for {left:.0f} s")
    return _more(past, policy, now) or _fewer(past, policy, now)


def _more(past: Sequence[Sample], policy: Policy, now: int) -> Decision | None:
    """Decide to add some, if there are certainly too few."""
    current = past[-1].wanted
    window = _within(past, policy.rise, now)
    loads = [sample.low for sample in window if sample.low is not None]
    if not loads or past[-1].low is None or not _covers(past, policy.rise, policy, now):
        return None
    load = sum(loads) / len(loads)
    pressing = all(sample.pressing for sample in window)
    needed = current + pressing
    if load > _most_load(current, policy):
        needed = max(needed, _ceil(load / policy.target))
    wanted = min(needed, current + policy.up, policy.most)
    if needed == current:
        return None
    why = (
        f"runs wait longer than {policy.patience:.0f} s"
        if pressing and load <= _most_load(current, policy)
        else f"{_busy(load, current)}, above {policy.target:.0%}"
    )
    if wanted == current:
        return Decision(current, f"{why}, but {current} is the most there may be")
    return Decision(wanted, f"{why}: {_bounded(needed, wanted, policy.most)}")


def _fewer(past: Sequence[Sample], policy: Policy, now: int) -> Decision:
    """Decide to remove some if there are certainly too many, or to leave all as it is."""
    current = past[-1].wanted
    window = _within(past, policy.fall, now)
    highs = [sample.high for sample in window]
    loads = [high for high in highs if high is not None]
    if not loads or past[-1].high is None:
        return Decision(current, "not all that counts could be measured: nothing is changed")
    load = max(loads)
    needed = max(policy.fewest, _ceil(load / (policy.target * (1 - policy.band))))
    if needed >= current:
        return Decision(current, _well(past[-1], policy))
    could = f"{_count(needed)} could do"
    if any(sample.pressing for sample in window):
        return Decision(current, f"{could}, but runs had to wait lately")
    if len(loads) < len(highs) or not _covers(past, policy.fall, policy, now):
        text = f"{could}, but that has not been seen for {policy.fall:.0f} s without a gap"
        return Decision(current, text)
    wanted = max(needed, current - policy.down)
    why = f"at most {_busy(load, current)} for {policy.fall:.0f} s"
    return Decision(wanted, f"{why}: {_bounded(needed, wanted, policy.most)}")


def _well(newest: Sample, policy: Policy) -> str:
    """Say that nothing has to change, or not yet."""
    load, current = newest.low or 0.0, newest.wanted
    if load > _most_load(current, policy):
        return f"{_busy(load, current)}, above {policy.target:.0%}: let us see whether it lasts"
    return f"{_busy(load, current)}: as it should be"


def _most_load(replicas: int, policy: Policy) -> float:
    """The load up to which so many replicas are enough."""
    return replicas * policy.target * (1 + policy.band)


def _cooling(past: Sequence[Sample], policy: Policy, now: int) -> float:
    """Seconds until there may be another change."""
    changed = [after.at for before, after in pairwise(past) if after.wanted != before.wanted]
    return policy.cooldown - (now - changed[-1]) / 1000 if changed else 0.0


def _within(past: Sequence[Sample], seconds: float, now: int) -> list[Sample]:
    """The newest sample, and those of so many seconds."""
    return [sample for sample in past[:-1] if now - sample.at <= seconds * 1000] + [past[-1]]


def _covers(past: Sequence[Sample], seconds: float, policy: Policy, now: int) -> bool:
    """Whether so many seconds were watched without a gap."""
    began = now - seconds * 1000
    times = [sample.at for sample in past] + [now]
    late = [at for at in times if at > began]
    before = [at for at in times if at <= began]
    if not before:
        return False
    steps = [before[-1], *late]
    gaps = (later - earlier for earlier, later in pairwise(steps))
    return all(gap <= policy.gap * 1000 for gap in gaps)


def _ceil(value: float) -> int:
    """Round up, but not for what is only the inexactness of a division."""
    return math.ceil(value - 1e-9)


def _busy(load: float, replicas: int) -> str:
    return f"{_count(replicas)} {'is' if replicas == 1 else 'are'} {load / replicas:.0%} busy"


def _bounded(needed: int, wanted: int, most: int) -> str:
    if wanted == needed:
        return f"{_count(wanted)} will do"
    limit = "is the most there may be" if wanted == most and needed > most else "is one step"
    return f"{_count(needed)} would do, {wanted} {limit}"


def _count(replicas: int) -> str:
    return f"{replicas} replica{'' if replicas == 1 else 's'}"
