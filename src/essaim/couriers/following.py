"""What happens to a run in other processes, told from the journal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from essaim.model.runs import Event, Run, RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from essaim.model.journal import Journal

#: Seconds between looks whether there are workers.
LOOK_FOR_WORKERS = 3.0


class Follower:
    """Tells the changes of a run and all below it, as far as they are seen from look to look."""

    def __init__(
        self,
        journal: Journal,
        run: str,
        tell: Callable[[Event], None],
        served: Callable[[], Collection[str]] | None = None,
    ) -> None:
        self._journal = journal
        self._run = run
        self._tell = tell
        self._served = served
        self._seen: dict[str, tuple[RunState, str]] = {}
        self._look_at = 0.0

    def look(self) -> bool:
        """Tell what changed; return whether the run is over, or stuck, or unknown."""
        family = self._journal.family(self._run)
        for run in family:
            self._compare(run)
        self._look_for_workers(family)
        state = next((run.state for run in family if run.id == self._run), None)
        return state is None or state.over or state is RunState.STUCK

    def _compare(self, run: Run) -> None:
        now = run.state, run.note
        before = self._seen.get(run.id)
        if now == before:
            return
        self._seen[run.id] = now
        if run.state.over or run.state is RunState.STUCK:
            self._say(run, "done" if run.state is RunState.DONE else _END[run.state], run.error)
        elif run.epoch and run.state is not RunState.WAITING:
            self._say(run, "note" if before and before[0] is not RunState.WAITING else "started")

    def _say(self, run: Run, kind: str, text: str = "") -> None:
        self._tell(
            Event(
                run=run.id,
                workflow=run.workflow,
                subject=run.subject,
                parent=run.parent,
                kind=kind,
                text=text or run.note,
            )
        )

    def _look_for_workers(self, family: Collection[Run]) -> None:
        """Say when a run is due that no live worker may carry."""
        if self._served is None or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_FOR_WORKERS
        served = self._served()
        for run in family:
            if run.state is RunState.READY and run.site not in served:
                self._say(run, "waiting", lacking(run.site))
                return


def lacking(site: str) -> str:
    """Say that a run waits because nobody who may carry it is there."""
    whom = f"a worker of site {site}" if site else "a worker"
    return f"waits for {whom}: none is alive"


_END = {RunState.STUCK: "stuck", RunState.FAILED: "failed", RunState.ABANDONED: "failed"}
