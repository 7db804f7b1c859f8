"""What a step is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from essaim.model.journal import Journal
    from essaim.model.runs import NewRun, Run, StepRecord

#: Watchers see every note at once; the journal keeps at most one in so many seconds.
NOTE_EVERY = 0.5


class StepContext:
    """Implements `engine.workflow.Context` for one claimed run, through all of its steps."""

    def __init__(
        self,
        *,
        journal: Journal,
        run: Run,
        records: Mapping[str, StepRecord],
        tools: Any,
        emit_note: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._run = run
        self._records = records
        self._tools = tools
        self._emit_note = emit_note
        self._clock = clock
        self._noted_at: float | None = None
        self._written = run.note
        self.step = ""
        self.attempt = 1
        self._began = 0.0
        self.last_note = ""

    @property
    def run(self) -> Run:
        """The run this step belongs to."""
        return self._run

    @property
    def outputs(self) -> Mapping[str, Mapping[str, Any]]:
        """What the completed steps returned, by step name."""
        return {
            name: record.output
            for name, record in self._records.items()
            if record.output is not None
        }

    @property
    def tools(self) -> Any:
        """The services steps act through."""
        return self._tools

    @property
    def elapsed(self) -> float:
        """Seconds since this step first began, over all its tries and pauses."""
        return self._clock() - self._began

    def begin(self, step: str, attempt: int, began: float) -> None:
        """Get ready for a step's try; `began` is when its first try did, by our clock."""
        self.step = step
        self.attempt = attempt
        self.last_note = ""
        self._began = began

    def note(self, text: str) -> None:
        """Say what is going on; the last note is also written when the step ends or pauses."""
        self.last_note = text
        self._emit_note(text)
        now = self._clock()
        due = self._noted_at is None or now - self._noted_at >= NOTE_EVERY
        if due and text != self._written:
            self._noted_at = now
            self._written = text
            self._journal.note(self._run, text)

    def spawn(self, runs: Sequence[NewRun]) -> None:
        """Add child runs, unless this run has been taken away from its worker."""
        self._journal.add(runs, by=(self._run.id, self._run.epoch))

    def children(self) -> list[Run]:
        """List this run's children as the journal has them now."""
        return self._journal.children(self._run.id)
