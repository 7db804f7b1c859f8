"""Carries one claimed run as far as it goes now.

The end of a step and the beginning of the next are one write.  Nothing is ever held open while a
step is at work: if this process dies, the journal says exactly which step may have half happened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from essaim.engine.context import StepContext
from essaim.engine.decide import next_do, next_undo
from essaim.engine.failure import Failure, Verdict, judge, pause
from essaim.engine.workflow import OnFailure
from essaim.model.errors import NotYetError, RejectedError, StoreError
from essaim.model.journal import LostError, Mark, Move, Slot
from essaim.model.runs import Again, Event, RunState, StepRecord, StepState

if TYPE_CHECKING:
    from collections.abc import Callable

    from essaim.engine.workflow import Step, Workflow
    from essaim.model.journal import Claim, Journal


#: Seconds after which a step is begun anew that could not use the database.  It did not fail: if
#: not even this can be written, the run's lease runs out.
LATER = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What every carrier of an engine shares."""

    journal: Journal
    tools: Any
    slots: Callable[[str], int]
    emit: Callable[[Event], None]
    lease: float
    clock: Callable[[], float]
    random: Callable[[], float]
    stopping: Callable[[], bool]


class Carrier:
    """One run in the hands of one worker."""

    def __init__(self, claim: Claim, workflow: Workflow, means: Means) -> None:
        self._run = claim.run
        self._slot = claim.slot
        self._undoing = claim.run.undoing
        self._error = claim.run.error
        self._workflow = workflow
        self._means = means
        self._records = {record.name: record for record in claim.steps}
        self._marks: list[Mark] = []  # to be written with the next move
        # When each step began, by our own clock.  What began under an earlier claim began as long
        # before this one as the database's clock says.
        self._began = {
            record.name: means.clock() - (claim.now - record.started_at) / 1000
            for record in claim.steps
        }
        self._context = StepContext(
            journal=means.journal,
            run=claim.run,
            records=self._records,
            tools=means.tools,
            emit_note=lambda text: self._emit("note", text=text),
            clock=means.clock,
        )

    def carry(self) -> None:
        """Go on until the run pauses, ends, or is lost to another worker."""
        if self._run.epoch == 1:
            self._emit("started")
            for step in self._records:  # its claim began the first of them
                self._emit("step", step=step)
        try:
            while self._undo_next() if self._undoing else self._do_next():
                pass
        except LostError:
            return  # whoever has it now also says what becomes of it
        except (KeyboardInterrupt, SystemExit):
            self._hand_back()
            raise

    def _do_next(self) -> bool:  # noqa: PLR0911 - one for each way a step can go
        step = next_do(self._workflow, self._records)
        if step is None:
            return self._end(RunState.DONE)
        if self._stops():
            return False
        if step.stored and step.name not in self._records:
            return self._do_stored(step)
        if not self._begin(step):
            return False
        self._prepare(step)
        try:
            answer = step.do(self._context)
            output = None if isinstance(answer, Again) else _output(self._workflow, step, answer)
        except LostError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not be forgotten
            return self._failed(step, error)
        if isinstance(answer, Again):
            return self._pause(answer.after, answer.note or self._context.last_note)
        self._mark(step, StepState.DONE, output=output or "{}")
        return True

    def _do_stored(self, step: Step) -> bool:
        """Do a step that acts on the store alone: its beginning, effect and end are one write."""
        self._context.begin(step.name, 1, self._means.clock())
        last = step is self._workflow.steps[-1]
        move = Move(
            state=RunState.DONE if last else RunState.RUNNING,
            begins=step.name,
            position=self._workflow.steps.index(step),
            done=True,
            frees=self._slot is not None,
        )
        try:
            self._write(move, lambda: self._act(step))
        except LostError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not be forgotten
            # Nothing of it happened, not even its beginning.
            return self._begin(step) and self._failed(step, error)
        self._emit("step", step=step.name)
        self._slot = None
        self._records[step.name] = StepRecord(
            run=self._run.id, name=step.name, state=StepState.DONE, output={}
        )
        if last:
            self._emit(RunState.DONE.value)
        return not last

    def _act(self, step: Step) -> None:
        if step.do(self._context) is not None:
            name = f"step {step.name} of workflow {self._workflow.name}"
            raise RejectedError(f"{name} is stored and must return nothing")

    def _begin(self, step: Step) -> bool:
        """Write that the step begins; False when it has to wait for its slot."""
        try:
            name = step.slot(self._run) if step.slot else None
            capacity = self._means.slots(name) if name else 0
        except Exception as error:  # noqa: BLE001 - a mistake in a table must not loop for ever
            reason = judge(error, 1, step.retry).line
            return self._stick(f"cannot tell the slot of step {step.name}: {reason}")
        record = self._records.get(step.name)
        fresh = record is None
        if record is not None and record.state is StepState.FAILED:
            self._mark(step, StepState.RUNNING)  # resumed by a person
        elif record is not None and name == self._slot and not self._marks:
            return True  # picked up where it was left: nothing to write
        frees = self._slot is not None and self._slot != name
        takes = None if name is None or name == self._slot else Slot(name, capacity)
        began = self._write(
            Move(
                begins=step.name if fresh else "",
                position=self._workflow.steps.index(step),
                frees=frees,
                takes=takes,
            )
        )
        if not began:
            self._emit("waiting", step=step.name, text=f"waits for slot {name}")
            return False
        self._slot = name
        if fresh:
            self._began[step.name] = self._means.clock()
            self._records[step.name] = StepRecord(
                run=self._run.id, name=step.name, state=StepState.RUNNING
            )
        self._emit("step", step=step.name)
        return True

    def _prepare(self, step: Step) -> None:
        tries = self._records[step.name].attempts
        self._context.begin(step.name, tries + 1, self._began[step.name])

    def _undo_next(self) -> bool:
        step = next_undo(self._workflow, self._records)
        if step is None or step.undo is None:
            return self._end(RunState.FAILED)
        if self._stops():
            return False
        record = self._records[step.name]
        if record.state is not StepState.UNDOING:
            self._mark(step, StepState.UNDOING, error=record.error)
            self._write(Move(frees=self._slot is not None))
            self._slot = None
            self._emit("undoing", step=step.name)
            self._began[step.name] = self._means.clock()
        self._prepare(step)
        try:
            answer = step.undo(self._context)
        except LostError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not be forgotten
            return self._undo_failed(step, error)
        if isinstance(answer, Again):
            return self._pause(answer.after, answer.note or self._context.last_note)
        self._mark(step, StepState.UNDONE, error=record.error)
        return True

    def _failed(self, step: Step, error: Exception) -> bool:
        if isinstance(error, StoreError):
            return self._pause(LATER, error.what)
        if isinstance(error, NotYetError):
            return self._pause(error.after, error.what)
        tries = self._records[step.name].attempts + 1
        failure = judge(error, tries, step.retry)
        if failure.verdict is Verdict.RETRY:
            return self._retry(step, StepState.RUNNING, failure, tries)
        self._mark(step, StepState.FAILED, attempts=tries, error=failure.text)
        if failure.verdict is Verdict.STUCK or step.on_failure is OnFailure.STOP:
            return self._stick(failure.line)
        self._undoing = True
        self._error = failure.line
        return True

    def _undo_failed(self, step: Step, error: Exception) -> bool:
        if isinstance(error, StoreError):
            return self._pause(LATER, error.what)
        if isinstance(error, NotYetError):
            return self._pause(error.after, error.what)
        tries = self._records[step.name].attempts + 1
        failure = judge(error, tries, step.retry)
        if failure.verdict is Verdict.RETRY:
            return self._retry(step, StepState.UNDOING, failure, tries)
        self._mark(step, StepState.UNDOING, attempts=tries, error=failure.text)
        return self._stick(f"cannot undo {step.name}: {failure.line}; it failed: {self._error}")

    def _retry(self, step: Step, state: StepState, failure: Failure, tries: int) -> bool:
        self._mark(step, state, attempts=tries, error=failure.text)
        after = pause(step.retry, tries, self._means.random)
        note = f"{step.name}: try {tries} of {step.retry.attempts} failed: {failure.line}"
        self._emit("note", step=step.name, text=note)
        return self._pause(after, note)

    def _mark(
        self,
        step: Step,
        state: StepState,
        *,
        attempts: int = 0,
        error: str = "",
        output: str | None = None,
    ) -> None:
        self._marks.append(
            Mark(name=step.name, state=state, attempts=attempts, error=error, output=output)
        )
        self._records[step.name] = dataclasses.replace(
            self._records[step.name],
            state=state,
            attempts=attempts,
            error=error,
            output=self._records[step.name].output if output is None else json.loads(output),
        )

    def _pause(self, after: float, note: str) -> bool:
        self._write(Move(state=RunState.READY, after=after, note=note))
        return False

    def _stops(self) -> bool:
        return self._means.stopping() and not self._pause(0.0, "handed back")

    def _hand_back(self) -> None:
        with contextlib.suppress(Exception):  # else its lease runs out; the first error matters
            self._pause(0.0, "handed back")

    def _stick(self, error: str) -> bool:
        self._error = error
        return self._end(RunState.STUCK)

    def _end(self, state: RunState) -> bool:
        self._write(Move(state=state, frees=self._slot is not None))
        self._emit(state.value, text=self._error)
        return False

    def _write(self, move: Move, act: Callable[[], None] | None = None) -> bool:
        move = dataclasses.replace(
            move, undoing=self._undoing, error=self._error, marks=tuple(self._marks)
        )
        written = self._means.journal.write(self._run, self._means.lease, move, act)
        self._marks.clear()
        return written

    def _emit(self, kind: str, *, step: str = "", text: str = "") -> None:
        run = self._run
        self._means.emit(
            Event(
                run=run.id,
                workflow=run.workflow,
                subject=run.subject,
                parent=run.parent,
                kind=kind,
                step=step,
                text=text,
            )
        )


def _output(workflow: Workflow, step: Step, answer: Mapping[str, Any] | None) -> str:
    """Return a step's answer as JSON, or say what is wrong with it."""
    if answer is None:
        return "{}"
    try:
        if isinstance(answer, Mapping):
            return json.dumps(dict(answer), allow_nan=False)
        problem = f"is a {type(answer).__name__}"
    except (TypeError, ValueError) as error:
        problem = str(error)
    raise RejectedError(
        f"step {step.name} of workflow {workflow.name} must return a JSON object: {problem}"
    )
