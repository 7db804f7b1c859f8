"""Slots: how many may do a thing at once.

A row of `slot` is locked while its users are counted or change, so that whoever finds a slot full
is seen by whoever frees it next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.runs import RunState
from essaim.store.database import Database, db_now
from essaim.store.schema import run, slot, slot_use

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from essaim.model.journal import Slot

#: A waiter is woken by whoever frees the slot.  It also looks by itself after this many
#: milliseconds, because the capacity may have been raised since.
LOOK_AGAIN = 30_000

LOCK = sa.select(slot.c.name).where(slot.c.name == bindparam("b_slot")).with_for_update()
USERS = sa.select(slot_use.c.run).where(slot_use.c.slot == bindparam("b_slot"))
USES = sa.select(slot_use.c.run, slot_use.c.slot).where(
    slot_use.c.run.in_(bindparam("b_runs", expanding=True))
)
USE = sa.insert(slot_use)
FREE = sa.delete(slot_use).where(slot_use.c.run == bindparam("b_run"))
FULL = (
    sa.update(run)
    .where(run.c.id == bindparam("b_run"))
    .values(
        state=RunState.READY.value,
        owner="",
        note=bindparam("b_note"),
        due_at=db_now() + LOOK_AGAIN,
        waits_slot=bindparam("b_slot"),
        slot_since=sa.func.coalesce(run.c.slot_since, db_now()),
    )
)
GOT = (
    sa.update(run)
    .where(run.c.id == bindparam("b_run"), run.c.waits_slot.is_not(None))
    .values(waits_slot=None, slot_since=None)
)
# Those with a time to come only: the others have been woken already.
_ASLEEP = (
    run.c.waits_slot == bindparam("b_slot"),
    run.c.state == RunState.READY.value,
    run.c.due_at > db_now(),
)
ASLEEP = sa.select(run.c.id).where(*_ASLEEP).order_by(run.c.slot_since, run.c.id)
WAKE = sa.update(run).where(run.c.id == bindparam("b_run"), *_ASLEEP).values(due_at=db_now())


class Slots:
    """Takes and frees slots within a transaction of the journal."""

    def __init__(self, database: Database) -> None:
        self._know = database.insert_missing(slot)

    def take(self, connection: Connection, run_id: str, wanted: Slot) -> bool:
        """Let the run use the slot; False when it is full, and the run now waits for it."""
        connection.execute(self._know, {"name": wanted.name})
        connection.execute(LOCK, {"b_slot": wanted.name})
        users = connection.execute(USERS, {"b_slot": wanted.name}).scalars().all()
        if run_id not in users:
            if len(users) >= wanted.capacity:
                note = f"waits for slot {wanted.name}"
                connection.execute(FULL, {"b_run": run_id, "b_slot": wanted.name, "b_note": note})
                return False
            connection.execute(USE, {"run": run_id, "slot": wanted.name})
        connection.execute(GOT, {"b_run": run_id})
        return True

    def free(self, connection: Connection, runs: list[str]) -> None:
        """Give back what these runs use, and wake who has waited longest for it."""
        used = connection.execute(USES, {"b_runs": runs}).all()
        for run_id, name in sorted(used, key=lambda use: use.slot):
            connection.execute(LOCK, {"b_slot": name})
            connection.execute(FREE, {"b_run": run_id})
            _wake_next(connection, name)


def _wake_next(connection: Connection, name: str) -> None:
    # Waits for each row in turn: to skip a locked one would lose it, for a claim that passes by
    # locks rows on MariaDB that it does not take.  Who changed meanwhile is passed over.
    for waiter in connection.execute(ASLEEP, {"b_slot": name}).scalars().all():
        if connection.execute(WAKE, {"b_run": waiter, "b_slot": name}).rowcount:
            return
