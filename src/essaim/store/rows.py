"""Rows become values here, and nowhere else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from essaim.model.runs import Run, RunState, StepRecord, StepState

if TYPE_CHECKING:
    from sqlalchemy import Row


def to_run(row: Row[Any]) -> Run:
    """Make a value of a row of `run`."""
    return Run(
        id=row.id,
        workflow=row.workflow,
        subject=row.subject,
        input=json.loads(row.input),
        state=RunState(row.state),
        undoing=bool(row.undoing),
        parent=row.parent,
        who=row.who,
        note=row.note,
        error=row.error,
        owner=row.owner,
        epoch=row.epoch,
        created_at=row.created_at,
        wake_at=row.due_at or 0,
        finished_at=row.finished_at,
    )


def to_step(row: Row[Any]) -> StepRecord:
    """Make a value of a row of `step`."""
    return StepRecord(
        run=row.run,
        name=row.name,
        state=StepState(row.state),
        output=None if row.output is None else json.loads(row.output),
        attempts=row.attempts,
        error=row.error,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def milliseconds(seconds: float) -> int:
    """Count a duration as the database does."""
    return max(0, round(seconds * 1000))


def fitting(text: str, most: int = 190) -> str:
    """Cut a text for people so that it fits its column."""
    return text if len(text) <= most else text[: most - 1] + "…"
