"""Which faults happen when: a list that its seed decides, so that a run can be repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Pauses between the beginnings of two faults, in seconds.
PAUSE = (2.0, 8.0)


@dataclass(frozen=True, order=True)
class Fault:
    """Something that breaks at a moment and is mended so many seconds later."""

    at: float
    kind: str
    target: str
    seconds: float

    @property
    def name(self) -> str:
        return f"{self.kind} {self.target.partition('-')[0]}"

    def __str__(self) -> str:
        return f"{self.at:6.1f} s  {self.kind} {self.target} for {self.seconds:.1f} s"


@dataclass(frozen=True)
class Kind:
    """What may break, for how long, and how often beside the others."""

    kind: str
    targets: tuple[str, ...]
    seconds: tuple[float, float]
    weight: int


def numbered(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}-{number}" for number in range(count))


def kinds(machines: tuple[str, ...]) -> tuple[Kind, ...]:
    """All that breaks.  The last worker is the one in a network of its own."""
    made = [
        Kind("cut", ("worker-2",), (15, 50), 2),
        Kind("restart", ("database",), (0.5, 6), 1),
        Kind("crash", ("database",), (0.5, 6), 1),
        Kind("slow", ("database",), (8, 15), 1),
        Kind("full", ("database",), (4, 12), 1),
        Kind("crash", ("broker",), (0.5, 8), 2),
        Kind("flush", ("broker",), (0, 0), 2),
        Kind("off", machines, (3, 45), 2),
    ]
    for name, count in (("api", 2), ("controller", 2), ("worker", 3), ("gateway", 2)):
        made.append(Kind("kill", numbered(name, count), (0.5, 8), 2))
        # Past the lease of its runs, or not.
        made.append(Kind("freeze", numbered(name, count), (2, 40), 1))
    clocks = ("api", "controller", "worker")
    made.extend(Kind("skew", numbered(name, 2), (15, 40), 1) for name in clocks)
    return tuple(made)


def plan(seed: int, seconds: float, every: tuple[Kind, ...]) -> list[Fault]:
    """Lay out faults over so many seconds; each kind comes once before any comes too often.

    Nothing breaks that is broken already.
    """
    choose = random.Random(seed)
    busy: dict[str, float] = {}
    bag: list[Kind] = []
    found: list[Fault] = []
    now = choose.uniform(*PAUSE)
    while now < seconds:
        if not bag:
            bag = [kind for kind in every for _ in range(kind.weight)]
            choose.shuffle(bag)
        kind = bag.pop()
        lasts = choose.uniform(*kind.seconds)
        free = [target for target in kind.targets if busy.get(target, 0.0) <= now]
        if free:
            target = choose.choice(free)
            found.append(Fault(now, kind.kind, target, lasts))
            busy[target] = now + lasts + 1.0
        now += choose.uniform(*PAUSE)
    return found
