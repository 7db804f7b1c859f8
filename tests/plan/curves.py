"""Load curves, and a service that is scaled while it is under them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from essaim.plan.scaling import Policy, Reading, Sample, decide, of_readings

#: Seconds since 1970 at which every simulation begins.
START = 1_700_000_000

Load = Callable[[float], float | None]


@dataclass
class Replica:
    started: float


@dataclass
class Look:
    """One decision of a simulation."""

    at: float
    before: int
    after: int
    reason: str


def play(
    load: Load, policy: Policy, seconds: float, *, first: int | None = None, starting: float = 8.0
) -> list[Look]:
    """Let a service be scaled under a load, which is in full replicas; None: not measurable.

    A replica takes `starting` seconds, all of which it is busy, before it takes its part of the
    load, and no replica is ever more than full.
    """
    wanted = first or policy.fewest
    replicas = [Replica(-1000.0) for _ in range(wanted)]
    history: list[Sample] = []
    looks: list[Look] = []
    for step in range(int(seconds / policy.interval)):
        at = step * policy.interval
        now = milliseconds(at)
        readings = read(replicas, load(at), at, starting)
        history.append(of_readings(readings, at=now, wanted=wanted, policy=policy))
        history = [each for each in history if now - each.at <= policy.horizon * 1000]
        made = decide(history, policy, now)
        looks.append(Look(at, wanted, made.replicas, made.reason))
        wanted = made.replicas
        replicas += [Replica(at) for _ in range(wanted - len(replicas))]
        del replicas[wanted:]
    return looks


def read(replicas: list[Replica], load: float | None, at: float, starting: float) -> list[Reading]:
    serving = [each for each in replicas if at - each.started >= starting]
    share = None if load is None else min(1.0, load / len(serving)) if serving else 0.0
    return [Reading(share if each in serving else 1.0, at - each.started) for each in replicas]


def milliseconds(at: float) -> int:
    return round((START + at) * 1000)


def changes(looks: list[Look]) -> list[tuple[float, int, int]]:
    return [(look.at, look.before, look.after) for look in looks if look.before != look.after]


def step(before: float, after: float, when: float) -> Load:
    return lambda at: after if at >= when else before


def ramp(begin: float, end: float, seconds: float) -> Load:
    return lambda at: begin + (end - begin) * min(1.0, at / seconds)


def spike(base: float, peak: float, when: float, lasts: float) -> Load:
    return lambda at: peak if when <= at < when + lasts else base


def flapping(low: float, high: float, period: float) -> Load:
    return lambda at: high if at % period < period / 2 else low


def night(peak: float, day: float = 86_400.0) -> Load:
    """Nothing at midnight, the most at noon."""
    return lambda at: peak * (1 - math.cos(2 * math.pi * at / day)) / 2


def gone(load: Load, begin: float, end: float) -> Load:
    """A load that cannot be measured for a while."""
    return lambda at: None if begin <= at < end else load(at)
