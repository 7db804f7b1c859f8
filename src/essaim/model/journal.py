"""The journal: where runs live, and the only thing workers agree through.

Engine and store are siblings that do not know each other; they meet in this protocol.  Every
method is one transaction that may be repeated, and every time is the database's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from essaim.model.runs import NewRun, Run, RunState, StepRecord, StepState

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Collection, Mapping, Sequence


class LostError(Exception):
    """The run is no longer this worker's: another has claimed it, or it was abandoned."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Something of which only `capacity` may happen at once."""

    name: str
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A run that a worker holds until it writes it away, or its lease runs out."""

    run: Run
    steps: tuple[StepRecord, ...] = ()
    slot: str | None = None  #: kept from an earlier claim: the step in flight still has it
    holds: str | None = None  #: the exclusive name this run keeps
    now: int = 0  #: when it was claimed, in the database's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A step's row as it shall be from now on."""

    name: str
    state: StepState
    attempts: int = 0
    error: str = ""
    output: str | None = None  #: JSON; None leaves what is there


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """All that a worker writes about its run at one moment: either all of it happens or nothing."""

    state: RunState = RunState.RUNNING
    undoing: bool = False
    note: str = ""
    error: str = ""
    after: float = 0.0  #: for READY: seconds until it may be claimed
    marks: tuple[Mark, ...] = ()
    begins: str = ""  #: a step that begins for the first time
    position: int = 0  #: where that step stands in its workflow
    done: bool = False  #: it is also done already, and returned nothing
    frees: bool = False  #: gives its slot back
    takes: Slot | None = None  #: needs this slot to go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """Runs that somebody ought to be told of."""

    #: Ids by site: became due since they were last sent.
    fresh: Mapping[str, Sequence[str]]
    #: Ids by site: sent before, and nobody has come for them.
    stale: Mapping[str, Sequence[str]]
    next_due: float | None  #: seconds until another may become due by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process of the control plane that was seen lately."""

    id: str
    kind: str  #: worker | api | controller | gateway | serve
    sites: tuple[str, ...]  #: of a worker: whose runs it carries; empty is anybody's
    host: str
    pid: int
    since_at: int
    seen_at: int


class Journal(Protocol):
    """What the engine asks of a store."""

    def add(
        self,
        runs: Sequence[NewRun],
        *,
        owner: str = "",
        lease: float = 0.0,
        by: tuple[str, int] | None = None,
    ) -> None:
        """Add all runs or none; those already there stay as they are.

        HeldError when a name is held by another.  `owner` watches over the names for `lease`
        seconds.  `by` is the run and epoch that asks: LostError when it is no longer current.
        """

    def claim(
        self,
        owner: str,
        lease: float,
        *,
        mine: Collection[str] = (),
        roots: Collection[str] = (),
        sites: Collection[str] | None = None,
        run: str | None = None,
        first: Mapping[str, str] | None = None,
    ) -> Claim | None:
        """Take the run that has been due longest, or None.

        A run in `mine` is being carried by this very owner: it gets a new lease instead.  With
        `roots`, only runs of those trees are taken; with `sites`, only runs of those sites; with
        `run`, only that one.  `first` names, for some workflows, the step that begins with a run's
        first claim.
        """

    def next_due(
        self, *, roots: Collection[str] = (), sites: Collection[str] | None = None
    ) -> float | None:
        """Seconds until a run may be claimed (0 or less: now); None when nothing ever will be."""

    def outbox(self, *, again: float, limit: int = 500) -> Outbox:
        """List due runs of sites with a live worker that workers are to be told of, and mark them.

        One that became due since it was last sent is fresh; one sent more than `again` seconds ago
        and not taken is stale.  Each is given to one caller only.
        """

    def family(self, run: str) -> builtins.list[Run]:
        """List all runs of the tree that a run belongs to, oldest first."""

    def write(
        self, run: Run, lease: float, move: Move, act: Callable[[], None] | None = None
    ) -> bool:
        """Write a worker's move; LostError when the run is not at that epoch any more.

        False when `takes` could not be had: the rest is written, and the run is READY and will be
        woken when the slot is free.  What `act` does to the same store is part of the move: when
        it raises, nothing of it happens.
        """

    def note(self, run: Run, text: str) -> None:
        """Keep what a run is doing, for people.  Nothing when the run is lost."""

    def heartbeat(self, owner: str, lease: float, runs: Mapping[str, int]) -> set[str]:
        """Renew the leases of these runs (id to epoch) and of held names; return the lost ones."""

    def leave(self, owner: str) -> None:
        """Stop watching over held names: a later worker may go on or give up at once."""

    def owners(self) -> list[str]:
        """Everybody who holds a lease on a run or a name."""

    def expire(self, owners: Collection[str]) -> int:
        """End the leases of owners known to be dead; return how many runs that set free."""

    def get(self, run: str) -> Run | None:
        """Return the run, or None."""

    def steps(self, run: str) -> list[StepRecord]:
        """List the steps of a run that have begun, in the workflow's order."""

    def children(self, parent: str) -> list[Run]:
        """List the runs with that parent, oldest first."""

    def resume(self, run: str, *, owner: str = "", lease: float = 0.0) -> list[str]:
        """Let a stuck run go on with fresh attempts; return the ids of those that do.

        Its stuck descendants go on too, and its stuck ancestors, which watch over it.  HeldError
        when somebody else has taken the name in the meantime.
        """

    def abandon(self, run: str, *, with_children: bool = True) -> list[str]:
        """Give a run up as it is, whoever holds it; return the ids of those given up."""

    def supersede(self, hold: str) -> list[str]:
        """Give up every unfinished tree of runs that keeps, or kept, this name.

        HeldError when one of them has a live owner.
        """

    def durations(self) -> Mapping[tuple[str, str], Sequence[float]]:
        """How long the latest steps took, in seconds, by workflow and step."""

    def list(
        self,
        *,
        roots: bool = False,
        subject: str = "",
        workflow: str = "",
        states: Collection[RunState] = (),
        limit: int = 100,
    ) -> builtins.list[Run]:
        """List runs, the newest first; `roots` leaves out those that have a parent."""

    def prune(self, older_than: float) -> int:
        """Forget trees of runs that ended more than so many seconds ago, with their logs."""
