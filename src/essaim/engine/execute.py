"""The engine: claims due runs and carries them.  Many threads and processes may do so at once."""

from __future__ import annotations

import logging
import math
import random as _random
import threading
import time
from typing import TYPE_CHECKING, Any

from essaim.engine.carry import Carrier, Means
from essaim.engine.decide import first_steps
from essaim.engine.heartbeat import Heartbeat
from essaim.engine.owner import owner_is_dead
from essaim.model.journal import LostError, Move
from essaim.model.runs import Event, RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from essaim.engine.workflow import Workflow
    from essaim.model.journal import Claim, Journal
    from essaim.model.runs import NewRun

log = logging.getLogger(__name__)


class Engine:
    """Carries runs of the given workflows, in the name of one owner.

    `own_only` keeps to the trees of runs that this engine started or resumed: what a command
    wants, which should not finish what somebody else stopped.  A worker takes all that is due, or
    what is due of its `sites`.
    """

    def __init__(
        self,
        journal: Journal,
        workflows: Mapping[str, Workflow],
        tools: Any,
        *,
        owner: str,
        emit: Callable[[Event], None] = lambda _event: None,
        slots: Callable[[str], int] = lambda _name: 1,
        lease: float = 15.0,
        own_only: bool = False,
        sites: Collection[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = _random.random,
    ) -> None:
        self.owner = owner
        self.lease = lease
        self._journal = journal
        self._workflows = workflows
        self._first = first_steps(workflows.values())
        self._emit = emit
        self._own_only = own_only
        self._sites = sites
        self._roots: set[str] = set()
        self._stopping = threading.Event()
        self._heartbeat = Heartbeat(journal, owner, lease)
        self._means = Means(
            journal=journal,
            tools=tools,
            slots=slots,
            emit=self._tell,
            lease=lease,
            clock=clock,
            random=random,
            stopping=self._stopping.is_set,
        )

    def work(
        self, claimed: Callable[[], None] | None = None, *, run: str | None = None
    ) -> bool | float:
        """Carry one due run, or just the one named, as far as it goes now and return True.

        Returns the seconds until a run is due when none is; infinity when none ever will be by
        itself, or when the one named is not.  `claimed` is called once a run was found, before it
        is carried.
        """
        if self._stopping.is_set() or (self._own_only and not self._roots):
            return math.inf
        roots = frozenset(self._roots) if self._own_only else frozenset()
        mine = self._heartbeat.mine
        sites = self._sites
        claim = self._journal.claim(
            self.owner,
            self.lease,
            mine=mine,
            roots=roots,
            sites=sites,
            run=run,
            first=self._first,
        )
        if claim is None:
            due = None if run else self._journal.next_due(roots=roots, sites=sites)
            return math.inf if due is None else max(0.0, due)
        self._heartbeat.hold(claim.run)
        if claim.holds is not None:
            self._heartbeat.guard()
        if claimed is not None:
            claimed()
        try:
            self._carry(claim)
        finally:
            self._heartbeat.drop(claim.run)
        return True

    def start(self, runs: Sequence[NewRun]) -> None:
        """Add runs, all or none; those already there are left as they are.

        HeldError when one of them needs a name that another unfinished run holds.
        """
        self._journal.add(runs, owner=self.owner, lease=self.lease)
        self._roots.update(run.id for run in runs if run.parent is None)
        if any(run.holds is not None for run in runs):
            self._heartbeat.guard()

    def resume(self, run: str) -> list[str]:
        """Let a stuck run go on from where it failed; see `Journal.resume`.

        A run that was merely left by its worker is not stuck: it is taken up as it is.
        """
        resumed = self._journal.resume(run, owner=self.owner, lease=self.lease)
        self._roots.add(self._root(run))
        self._heartbeat.guard()
        return resumed

    def abandon(self, run: str, *, with_children: bool = True) -> list[str]:
        """Give a run up as it is, even while a worker carries it; see `Journal.abandon`."""
        return self._journal.abandon(run, with_children=with_children)

    def supersede(self, hold: str) -> list[str]:
        """Give up all unfinished trees that hold a name and have no live owner."""
        return self._journal.supersede(hold)

    def release_dead(self, is_dead: Callable[[str], bool] = owner_is_dead) -> int:
        """End the leases of owners known to be dead; return how many runs that set free."""
        others = [owner for owner in self._journal.owners() if owner != self.owner]
        return self._journal.expire([owner for owner in others if is_dead(owner)])

    def settled(self, run: str) -> bool:
        """Say whether a run is over, or stuck, or unknown: nothing will move it by itself."""
        found = self._journal.get(run)
        return found is None or found.state.over or found.state is RunState.STUCK

    def stop(self) -> None:
        """Claim no more; runs being carried are handed back when their current step ends."""
        self._stopping.set()

    def close(self) -> None:
        """Stop, and leave held names to whoever comes next.  Call it when no thread works."""
        self.stop()
        self._heartbeat.close()
        self._journal.leave(self.owner)

    def _root(self, run: str) -> str:
        found = self._journal.get(run)
        while found is not None and found.parent is not None:
            run, found = found.parent, self._journal.get(found.parent)
        return run

    def _carry(self, claim: Claim) -> None:
        workflow = self._workflows.get(claim.run.workflow)
        if workflow is not None:
            Carrier(claim, workflow, self._means).carry()
            return
        error = f"this version of Essaim knows no workflow called {claim.run.workflow}"
        move = Move(
            state=RunState.STUCK,
            undoing=claim.run.undoing,
            error=error,
            frees=claim.slot is not None,
        )
        try:
            self._journal.write(claim.run, self.lease, move)
        except LostError:
            return
        run = claim.run
        self._tell(
            Event(
                run=run.id,
                workflow=run.workflow,
                subject=run.subject,
                parent=run.parent,
                kind="stuck",
                text=error,
            )
        )

    def _tell(self, event: Event) -> None:
        try:
            self._emit(event)
        except Exception:
            # A watcher that stumbles must not stop the work.
            log.exception("a watcher failed")
