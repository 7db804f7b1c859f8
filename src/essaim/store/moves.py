"""What a worker writes about the run it holds, and what the end of a run sets going."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.journal import Claim, LostError, Mark, Move
from essaim.model.runs import Run, RunState, StepRecord, StepState
from essaim.store.database import Database, db_now
from essaim.store.rows import milliseconds
from essaim.store.schema import hold, run, step, wait
from essaim.store.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection

_MINE = (
    run.c.id == bindparam("b_run"),
    run.c.epoch == bindparam("b_epoch"),
    run.c.state == RunState.RUNNING.value,
)
_TOLD: dict[str, Any] = {
    "undoing": bindparam("b_undoing"),
    "note": bindparam("b_note"),
    "error": bindparam("b_error"),
}

KEEP = sa.update(run).where(*_MINE).values(**_TOLD, due_at=db_now() + bindparam("b_lease"))
PAUSE = (
    sa.update(run)
    .where(*_MINE)
    .values(
        **_TOLD,
        state=RunState.READY.value,
        owner="",
        # A child that ended while this run looked elsewhere could not wake it: no pause then.
        due_at=db_now() + sa.case((run.c.woken, 0), else_=bindparam("b_after")),
    )
)
_ENDED: dict[str, Any] = {
    "state": bindparam("b_state"),
    "owner": "",
    "due_at": None,
    "waits_slot": None,
    "slot_since": None,
}
STICK = sa.update(run).where(*_MINE).values(**_TOLD, **_ENDED)
END = sa.update(run).where(*_MINE).values(**_TOLD, **_ENDED, finished_at=db_now())

_MARKED: dict[str, Any] = {
    "state": bindparam("b_state"),
    "attempts": bindparam("b_attempts"),
    "error": bindparam("b_error"),
    "output": sa.func.coalesce(bindparam("b_output", type_=step.c.output.type), step.c.output),
}
_THE_STEP = (step.c.run == bindparam("b_run"), step.c.name == bindparam("b_name"))
MARK = sa.update(step).where(*_THE_STEP).values(**_MARKED, finished_at=None)
MARK_FINISHED = sa.update(step).where(*_THE_STEP).values(**_MARKED, finished_at=db_now())

UNHOLD = sa.delete(hold).where(hold.c.run == bindparam("b_run"))
WAITERS = sa.select(wait.c.run).where(wait.c.on_run == bindparam("b_run"))
LOCK = (
    sa.select(run.c.id)
    .where(run.c.id.in_(bindparam("b_runs", expanding=True)))
    .order_by(run.c.id)
    .with_for_update()
)
SATISFY = sa.delete(wait).where(wait.c.on_run == bindparam("b_run"))
START = (
    sa.update(run)
    .where(
        run.c.id.in_(bindparam("b_runs", expanding=True)),
        run.c.state == RunState.WAITING.value,
        ~sa.exists().where(wait.c.run == run.c.id),
    )
    .values(state=RunState.READY.value, due_at=db_now())
)
WAKE_PARENT = (
    sa.update(run)
    .where(
        run.c.id == bindparam("b_run"),
        run.c.state.in_([RunState.READY.value, RunState.RUNNING.value]),
    )
    .values(
        woken=True,
        due_at=sa.case((run.c.state == RunState.READY.value, db_now()), else_=run.c.due_at),
    )
)


class Moves:
    """Writes moves within a transaction of the journal."""

    def __init__(self, database: Database) -> None:
        self._slots = Slots(database)
        missing = database.insert_missing(step).values(
            run=bindparam("b_run"),
            name=bindparam("b_name"),
            position=bindparam("b_position"),
            attempts=0,
            error="",
            started_at=db_now(),
        )
        self._begin = missing.values(state=StepState.RUNNING.value)
        self._begin_done = missing.values(
            state=StepState.DONE.value, output="{}", finished_at=db_now()
        )

    def begin_first(self, connection: Connection, claim: Claim, name: str) -> Claim:
        """Write that the first step of a run begins, which was claimed just now."""
        connection.execute(self._begin, {"b_run": claim.run.id, "b_name": name, "b_position": 0})
        record = StepRecord(
            run=claim.run.id, name=name, state=StepState.RUNNING, started_at=claim.now
        )
        return dataclasses.replace(claim, steps=(record,))

    def write(
        self,
        connection: Connection,
        its: Run,
        lease: float,
        move: Move,
        act: Callable[[], None] | None = None,
    ) -> bool:
        """Write a move; see `model.journal.Journal.write`."""
        self._guard(connection, its, lease, move)
        if act is not None:
            act()
        if move.frees:
            self._slots.free(connection, [its.id])
        has_slot = move.takes is None or self._slots.take(connection, its.id, move.takes)
        if move.begins and has_slot:
            begin = self._begin_done if move.done else self._begin
            connection.execute(
                begin, {"b_run": its.id, "b_name": move.begins, "b_position": move.position}
            )
        for mark in move.marks:
            _mark(connection, its.id, mark)
        if not has_slot:
            return False
        if move.state.over or move.state is RunState.STUCK:
            self._settle(connection, its, move.state)
        return True

    def _guard(self, connection: Connection, its: Run, lease: float, move: Move) -> None:
        values = {
            "b_run": its.id,
            "b_epoch": its.epoch,
            "b_undoing": move.undoing,
            "b_note": move.note,
            "b_error": move.error,
        }
        if move.state is RunState.RUNNING:
            statement, values["b_lease"] = KEEP, milliseconds(lease)
        elif move.state is RunState.READY:
            statement, values["b_after"] = PAUSE, milliseconds(move.after)
        else:
            statement, values["b_state"] = END if move.state.over else STICK, move.state.value
        if connection.execute(statement, values).rowcount != 1:
            raise LostError(f"run {its.id} is no longer at epoch {its.epoch}")

    def _settle(self, connection: Connection, its: Run, state: RunState) -> None:
        connection.execute(UNHOLD, {"b_run": its.id})
        if state is RunState.DONE:
            start_waiters(connection, its.id)
        if its.parent is not None:
            connection.execute(WAKE_PARENT, {"b_run": its.parent})


def _mark(connection: Connection, run_id: str, mark: Mark) -> None:
    open_ = mark.state in {StepState.RUNNING, StepState.UNDOING}
    connection.execute(
        MARK if open_ else MARK_FINISHED,
        {
            "b_run": run_id,
            "b_name": mark.name,
            "b_state": mark.state.value,
            "b_attempts": mark.attempts,
            "b_error": mark.error,
            "b_output": mark.output,
        },
    )


def start_waiters(connection: Connection, run_id: str) -> None:
    """Start the runs that waited for nothing but this one."""
    waiters = connection.execute(WAITERS, {"b_run": run_id}).scalars().all()
    if not waiters:
        return
    # Of two runs that end at once, the second must see that the first has ended: it waits here.
    connection.execute(LOCK, {"b_runs": waiters}).all()
    connection.execute(SATISFY, {"b_run": run_id})
    connection.execute(START, {"b_runs": waiters})
