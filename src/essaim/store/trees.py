"""What a person decides about a run and those around it: resume, abandon, supersede."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.errors import HeldError, RejectedError, UnknownError
from essaim.model.runs import RunState, StepState
from essaim.store.adding import HOLDER, held, take_hold
from essaim.store.database import Database, db_now
from essaim.store.moves import WAKE_PARENT
from essaim.store.rows import milliseconds
from essaim.store.schema import hold, run, step, wait
from essaim.store.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from sqlalchemy.engine import Connection

OVER = frozenset(state.value for state in RunState if state.over)

_IDS: sa.BindParameter[str] = bindparam("b_runs", expanding=True)
_LIVE = sa.and_(run.c.state == RunState.RUNNING.value, run.c.due_at > db_now())

ROOT = sa.select(run.c.root).where(run.c.id == bindparam("b_run"))
TREE = (
    sa.select(run.c.id, run.c.parent, run.c.state, run.c.holds, _LIVE.label("live"))
    .where(run.c.root == bindparam("b_root"))
    .order_by(run.c.id)
    .with_for_update()
)
GIVE_UP = (
    sa.update(run)
    .where(run.c.id.in_(_IDS))
    .values(
        state=RunState.ABANDONED.value,
        owner="",
        epoch=run.c.epoch + 1,  # whoever carries it can write no more
        due_at=None,
        waits_slot=None,
        slot_since=None,
        finished_at=db_now(),
    )
)
UNWAIT = sa.delete(wait).where(wait.c.run.in_(_IDS))
UNHOLD = sa.delete(hold).where(hold.c.run.in_(_IDS))
GO_ON = (
    sa.update(run)
    .where(run.c.id.in_(_IDS))
    .values(state=RunState.READY.value, note="", error="", woken=False, due_at=db_now())
)
REFRESH = (
    sa.update(step)
    .where(
        step.c.run.in_(_IDS),
        step.c.state.in_([StepState.FAILED.value, StepState.UNDOING.value]),
    )
    .values(attempts=0, started_at=db_now())
)
WATCH = (
    sa.update(hold)
    .where(hold.c.run.in_(_IDS))
    .values(owner=bindparam("b_owner"), until_at=db_now() + bindparam("b_lease"))
)
KEEPERS = sa.select(run.c.id).where(
    run.c.holds == bindparam("b_name"), run.c.state.not_in(sorted(OVER))
)
WATCHED = HOLDER.where(hold.c.until_at > db_now())


class Trees:
    """Changes whole trees of runs within a transaction of the journal."""

    def __init__(self, database: Database) -> None:
        self._slots = Slots(database)

    def resume(self, connection: Connection, run_id: str, owner: str, lease: float) -> list[str]:
        """See `model.journal.Journal.resume`."""
        tree = _tree(connection, run_id)
        its = next(row for row in tree if row.id == run_id)
        if its.state in OVER:
            raise RejectedError(f"run {run_id} is {its.state}: there is nothing to resume")
        around = {run_id, *_below(tree, run_id), *_above(tree, run_id)}
        near = [row for row in tree if row.id in around]
        stuck = [row for row in near if row.state == RunState.STUCK.value]
        for row in stuck:
            if row.holds is not None:
                take_hold(connection, row.holds, row.id, owner, lease)
        ids = [row.id for row in stuck]
        connection.execute(GO_ON, {"b_runs": ids})
        connection.execute(REFRESH, {"b_runs": ids})
        connection.execute(
            WATCH,
            {"b_runs": sorted(around), "b_owner": owner, "b_lease": milliseconds(lease)},
        )
        return ids

    def abandon(self, connection: Connection, run_id: str, *, with_children: bool) -> list[str]:
        """See `model.journal.Journal.abandon`."""
        tree = _tree(connection, run_id)
        below = _below(tree, run_id) if with_children else ()
        return self._give_up(connection, tree, {run_id, *below})

    def supersede(self, connection: Connection, name: str) -> list[str]:
        """See `model.journal.Journal.supersede`."""
        watched = connection.execute(WATCHED, {"b_name": name}).one_or_none()
        if watched is not None:
            raise held(watched)
        given_up: list[str] = []
        for keeper in connection.execute(KEEPERS, {"b_name": name}).scalars().all():
            tree = _tree(connection, keeper)
            family = {keeper, *_below(tree, keeper)}
            if any(row.live for row in tree if row.id in family):
                found = connection.execute(HOLDER, {"b_name": name}).one_or_none()
                raise held(found) if found else _alive(name, keeper)
            given_up += self._give_up(connection, tree, family)
        return given_up

    def _give_up(
        self, connection: Connection, tree: Sequence[Any], family: Collection[str]
    ) -> list[str]:
        ends = [row for row in tree if row.id in family and row.state not in OVER]
        ids = [row.id for row in ends]
        if not ids:
            return []
        for statement in (GIVE_UP, UNWAIT, UNHOLD):
            connection.execute(statement, {"b_runs": ids})
        self._slots.free(connection, ids)
        for parent in sorted({row.parent for row in ends if row.parent is not None} - set(ids)):
            connection.execute(WAKE_PARENT, {"b_run": parent})
        return ids


def _alive(name: str, keeper: str) -> HeldError:
    return HeldError(
        f"{name}: run {keeper} is stuck, but runs below it are still being carried out",
        hint=f"wait for them, or give all up with: essaim runs abandon {keeper}",
        run_id=keeper,
    )


def _tree(connection: Connection, run_id: str) -> Sequence[Any]:
    root = connection.execute(ROOT, {"b_run": run_id}).scalar()
    if root is None:
        raise UnknownError(f"no run {run_id}", hint="essaim runs lists them")
    return connection.execute(TREE, {"b_root": root}).all()


def _below(tree: Sequence[Any], run_id: str) -> Iterable[str]:
    children: dict[str | None, list[str]] = {}
    for row in tree:
        children.setdefault(row.parent, []).append(row.id)
    found = list(children.get(run_id, ()))
    for key in found:  # grows while it is walked
        found += children.get(key, ())
    return found


def _above(tree: Sequence[Any], run_id: str) -> Iterable[str]:
    parents = {row.id: row.parent for row in tree}
    above = parents[run_id]
    while above is not None:
        yield above
        above = parents.get(above)
