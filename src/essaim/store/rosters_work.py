"""What runs do with the machines of a roster, and what they came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.runs import RunState
from essaim.store.schema import run, student

if TYPE_CHECKING:
    from essaim.store.database import Database

_OF = student.c.roster == bindparam("b_roster")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the children of a run are, and what those that pause wait for."""

    states: Mapping[RunState, int]
    notes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Work:
    """What the last run on a student's machine came to, or is doing."""

    workflow: str
    state: RunState
    note: str
    error: str


class Works:
    """Looks up runs of students' machines."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def busy(self, of: str) -> dict[str, str]:
        """Return the machines of a roster at which a run is at work by itself, with that run."""
        wanted = (
            sa.select(student.c.machine, student.c.run)
            .join(run, run.c.id == student.c.run)
            .where(
                _OF,
                run.c.parent.is_(None),
                run.c.state.in_([state.value for state in RunState if state.moving]),
            )
        )
        rows = self._database.read(lambda c: c.execute(wanted, {"b_roster": of}).all())
        return {row.machine: row.run for row in rows}

    def last(self, of: str) -> dict[str, Work]:
        """Return what the last run on each machine of a roster came to, by login."""
        wanted = (
            sa.select(student.c.login, run.c.workflow, run.c.state, run.c.note, run.c.error)
            .join(run, run.c.id == student.c.run)
            .where(_OF)
        )
        rows = self._database.read(lambda c: c.execute(wanted, {"b_roster": of}).all())
        return {
            row.login: Work(row.workflow, RunState(row.state), row.note, row.error) for row in rows
        }

    def progress(self, parent: str) -> Progress:
        """Count the children of a run by their state, and by what they say they wait for."""
        wanted = (
            sa.select(run.c.state, run.c.note, sa.func.count().label("many"))
            .where(run.c.parent == parent)
            .group_by(run.c.state, run.c.note)
        )
        states: Counter[RunState] = Counter()
        notes: Counter[str] = Counter()
        for row in self._database.read(lambda c: c.execute(wanted).all()):
            states[RunState(row.state)] += row.many
            if row.note and not RunState(row.state).over:
                notes[row.note] += row.many
        return Progress(states, notes)
