"""A plan: the difference between a stack and what was observed, as a value."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from essaim.model.machines import Observed

#: Verbs by which machines lose their disks; a network that is opened anew takes its machines along.
_DESTROYING = frozenset(
    {"retire", "destroy", "rebuild", "unhost", "rehost", "reopen", "remove", "reset"}
)


class Action(enum.StrEnum):
    """What a change does, as the symbol it is printed with."""

    ADD = "+"
    CHANGE = "~"
    REMOVE = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A role as it was last applied to a machine with success."""

    machine: str
    role: str
    digest: str  #: of everything known before it ran
    needs: str = ""  #: of the values it was given by other roles
    boot: str = ""  #: the machine's boot it was applied in


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All that was seen when a plan was made."""

    network: str | None = None  #: cidr, None when there is none
    internet: bool = False  #: whether the network's machines reach the internet through it
    images: frozenset[str] = frozenset()  #: digests of the images that are ready for use
    machines: Mapping[str, Observed] = field(default_factory=dict)
    applied: Mapping[tuple[str, str], Applied] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How a role on a machine differs from what was applied, as seen on the machine."""

    reason: str
    detail: str = ""  #: unified diffs of the files that differ; never a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One line of a plan.  `waits` names the keys of changes that must come first."""

    key: str  #: `network`, `nodes-3`, `nodes-3.slurm-node`: unique in the plan, names its run
    action: Action
    #: What carries it out.  The parent run does open, reopen and close itself; the others are
    #: workflows: build, raise, start, rebuild, configure, retire, destroy, gate.
    verb: str
    machine: str = ""  #: STACK/MACHINE
    role: str = ""
    reason: str = ""
    digest: str = ""  #: for `configure`: recorded once the role is applied
    waits: tuple[str, ...] = ()
    detail: str = ""  #: for people: what was changed by hand, as a diff
    gives_back: bool = False  #: the machine was adopted: it is let go, and its disk stays

    @property
    def destroys_disk(self) -> bool:
        """Whether a machine loses its disk by it."""
        return self.verb in _DESTROYING and not self.gives_back


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything apply needs; apply never decides again."""

    stack: str
    changes: tuple[Change, ...]
    world: str  #: fingerprint of the world it was made from
    wanted: str  #: fingerprint of the stack it was made for
    seconds: float | None = None  #: estimate from past runs; None when nothing is known
