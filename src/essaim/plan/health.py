"""Whether nodes are well, decided from what was seen of them and the time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from essaim.model.fleet import Node, NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How patient to be."""

    interval: float = 30.0  #: seconds between checks, and between heartbeats
    failures: int = 3  #: in a row: lost
    blind_share: float = 0.3  #: so much of the fleet at once: we may be the ones who are blind
    longest: float = 180 * 24 * 3600.0  #: seconds after its grant no lease goes on

    @property
    def fresh(self) -> float:
        """Seconds within which a node must have been seen to be rented out."""
        return 1.5 * self.interval


@dataclass(frozen=True, slots=True)
class Healthy:
    """Answers both ways."""

    again_in: float  #: seconds until it is worth looking again


@dataclass(frozen=True, slots=True)
class Suspect:
    """Missed something; not yet given up."""

    missed: int
    again_in: float


@dataclass(frozen=True, slots=True)
class Lost:
    """Given up."""

    reason: str


Verdict = Healthy | Suspect | Lost


def verdict(node: Node, now: int, policy: Policy) -> Verdict:
    """Judge one node.  Silence of its agent and failed checks over SSH both count."""
    silent = max(0.0, (now - node.beat_at) / 1000)
    beats = math.floor(silent / policy.interval)
    missed = max(beats, node.failures)
    if missed >= policy.failures:
        if beats >= policy.failures:
            return Lost(f"no heartbeat for {silent:.0f} s")
        return Lost(f"{node.failures} checks over SSH failed in a row")
    again = policy.interval - silent % policy.interval
    return Suspect(missed, again) if missed else Healthy(again)


def blind(nodes: Sequence[Node], verdicts: Sequence[Verdict], policy: Policy) -> bool:
    """Whether so many fail at once that the fault is probably ours: then nothing is moved.

    One node is never many, however small the fleet.  Nodes given up before say nothing about now.
    """
    current = [
        each
        for node, each in zip(nodes, verdicts, strict=True)
        if node.state not in (NodeState.LOST, NodeState.QUARANTINED)
    ]
    failing = sum(isinstance(each, Lost) for each in current)
    return failing > 1 and failing >= policy.blind_share * len(current)
