"""The journal in SQL."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.journal import Claim, Move, Outbox
from essaim.model.runs import NewRun, Run, RunState, StepRecord, StepState
from essaim.store.adding import add
from essaim.store.database import Database, db_now
from essaim.store.moves import Moves
from essaim.store.outbox import outbox
from essaim.store.rows import milliseconds, to_run, to_step
from essaim.store.schema import command_log, hold, run, slot_use, step, wait
from essaim.store.trees import Trees

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sqlalchemy.engine import Connection

_THIS = run.c.id == bindparam("b_run")
_OF_ROOTS = run.c.root.in_(bindparam("b_roots", expanding=True))
_OF_SITES = run.c.site.in_(bindparam("b_sites", expanding=True))
_IDS: sa.BindParameter[str] = bindparam("b_runs", expanding=True)

_DUE = sa.select(run, db_now().label("now")).where(run.c.due_at <= db_now())
DUE = _DUE.order_by(run.c.due_at, run.c.id).limit(1).with_for_update(skip_locked=True)
# Waits for whoever has it locked for a moment: passed over, it would have to be sent again.
DUE_THIS = _DUE.where(_THIS).with_for_update()
NEXT = sa.select(sa.func.min(run.c.due_at) - db_now())
TAKE = (
    sa.update(run)
    .where(run.c.id == bindparam("b_run"))
    .values(
        state=RunState.RUNNING.value,
        owner=bindparam("b_owner"),
        epoch=run.c.epoch + 1,
        woken=False,
        due_at=db_now() + bindparam("b_lease"),
        sent_at=0,  # whatever it becomes due for next has not been told yet
    )
)
RENEW = (
    sa.update(run)
    .where(
        run.c.id.in_(_IDS),
        run.c.owner == bindparam("b_owner"),
        run.c.state == RunState.RUNNING.value,
    )
    .values(due_at=db_now() + bindparam("b_lease"))
)
EPOCHS = sa.select(run.c.id, run.c.epoch).where(
    run.c.id.in_(_IDS), run.c.state == RunState.RUNNING.value
)
RENEW_HOLDS = (
    sa.update(hold)
    .where(hold.c.owner == bindparam("b_owner"))
    .values(until_at=db_now() + bindparam("b_lease"))
)
WATCH = (
    sa.update(hold)
    .where(hold.c.run == bindparam("b_run"))
    .values(owner=bindparam("b_owner"), until_at=db_now() + bindparam("b_lease"))
)
UNWATCH = (
    sa.update(hold)
    .where(hold.c.owner.in_(bindparam("b_owners", expanding=True)))
    .values(owner="", until_at=0)
)
NOTE = (
    sa.update(run)
    .where(
        run.c.id == bindparam("b_run"),
        run.c.epoch == bindparam("b_epoch"),
        run.c.state == RunState.RUNNING.value,
    )
    .values(note=bindparam("b_note"))
)
# Through the index of due runs: those that are over have no such time and are not looked at.
RUNNING_OWNERS = (
    sa.select(run.c.owner).where(run.c.due_at.is_not(None), run.c.owner != "").distinct()
)
HOLD_OWNERS = sa.select(hold.c.owner).where(hold.c.owner != "").distinct()
EXPIRE = (
    sa.update(run)
    .where(
        run.c.due_at.is_not(None),
        run.c.state == RunState.RUNNING.value,
        run.c.owner.in_(bindparam("b_owners", expanding=True)),
    )
    .values(due_at=db_now())
)
GET = sa.select(run).where(run.c.id == bindparam("b_run"))
STEPS = sa.select(step).where(step.c.run == bindparam("b_run")).order_by(step.c.position)
CHILDREN = (
    sa.select(run).where(run.c.parent == bindparam("b_run")).order_by(run.c.created_at, run.c.id)
)
_member = run.alias("member")
FAMILY = (
    sa.select(run)
    .where(run.c.root.in_(sa.select(_member.c.root).where(_member.c.id == bindparam("b_run"))))
    .order_by(run.c.created_at, run.c.id)
)
SLOT = sa.select(slot_use.c.slot).where(slot_use.c.run == bindparam("b_run"))

#: Enough to find some of each kind, few enough to read in a blink.
LATEST = 10_000
OF_EACH_KIND = 50
DURATIONS = (
    sa.select(run.c.workflow, step.c.name, step.c.started_at, step.c.finished_at)
    .join(run, run.c.id == step.c.run)
    .where(step.c.finished_at.is_not(None), step.c.state == StepState.DONE.value)
    .order_by(step.c.finished_at.desc())
    .limit(LATEST)
)

_root = run.alias("root_run")
OLD = (
    sa.select(run.c.id)
    .join(_root, _root.c.id == run.c.root)
    .where(
        # A child outlives its tree's root in no case: the root would spawn it again.
        run.c.finished_at < db_now() - bindparam("b_age"),
        _root.c.finished_at < db_now() - bindparam("b_age"),
    )
    .limit(500)
)
FORGET = (
    sa.delete(step).where(step.c.run.in_(_IDS)),
    sa.delete(command_log).where(command_log.c.run.in_(_IDS)),
    sa.delete(wait).where(wait.c.run.in_(_IDS)),
    sa.delete(run).where(run.c.id.in_(_IDS)),
)


class SqlJournal:
    """Implements `model.journal.Journal`; share one between all threads of a process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._moves = Moves(database)
        self._trees = Trees(database)

    def add(
        self,
        runs: Sequence[NewRun],
        *,
        owner: str = "",
        lease: float = 0.0,
        by: tuple[str, int] | None = None,
    ) -> None:
        """See the protocol."""
        if runs:
            self._database.write(lambda c: add(c, runs, owner=owner, lease=lease, by=by))

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
        """See the protocol."""
        find, values = _narrowed(DUE if run is None else DUE_THIS, roots, sites)
        if run is not None:
            values["b_run"] = run

        def body(connection: Connection) -> Claim | None:
            claim = _claim(connection, owner, lease, mine, (find, values))
            if claim is None or claim.run.epoch > 1:
                return claim
            name = (first or {}).get(claim.run.workflow)
            return self._moves.begin_first(connection, claim, name) if name else claim

        return self._database.write(body)

    def next_due(
        self, *, roots: Collection[str] = (), sites: Collection[str] | None = None
    ) -> float | None:
        """See the protocol."""
        find, values = _narrowed(NEXT, roots, sites)
        left = self._database.read(lambda c: c.execute(find, values).scalar())
        return None if left is None else left / 1000

    def outbox(self, *, again: float, limit: int = 500) -> Outbox:
        """See the protocol."""
        return outbox(self._database, again, limit)

    def family(self, run: str) -> builtins.list[Run]:
        """See the protocol."""
        rows = self._database.read(lambda c: c.execute(FAMILY, {"b_run": run}).all())
        return [to_run(row) for row in rows]

    def write(
        self, run: Run, lease: float, move: Move, act: Callable[[], None] | None = None
    ) -> bool:
        """See the protocol."""
        return self._database.write(lambda c: self._moves.write(c, run, lease, move, act))

    def note(self, run: Run, text: str) -> None:
        """See the protocol."""
        values = {"b_run": run.id, "b_epoch": run.epoch, "b_note": text}
        self._database.write(lambda c: c.execute(NOTE, values))

    def heartbeat(self, owner: str, lease: float, runs: Mapping[str, int]) -> set[str]:
        """See the protocol."""
        return self._database.write(lambda c: _heartbeat(c, owner, lease, runs))

    def leave(self, owner: str) -> None:
        """See the protocol."""
        self._database.write(lambda c: c.execute(UNWATCH, {"b_owners": [owner]}))

    def owners(self) -> list[str]:
        """See the protocol."""

        def body(connection: Connection) -> set[str]:
            both = (RUNNING_OWNERS, HOLD_OWNERS)
            return {owner for find in both for owner in connection.execute(find).scalars()}

        return sorted(self._database.read(body))

    def expire(self, owners: Collection[str]) -> int:
        """See the protocol."""

        def body(connection: Connection) -> int:
            values = {"b_owners": sorted(owners)}
            connection.execute(UNWATCH, values)
            return connection.execute(EXPIRE, values).rowcount

        return self._database.write(body) if owners else 0

    def get(self, run: str) -> Run | None:
        """See the protocol."""
        row = self._database.read(lambda c: c.execute(GET, {"b_run": run}).one_or_none())
        return None if row is None else to_run(row)

    def steps(self, run: str) -> list[StepRecord]:
        """See the protocol."""
        rows = self._database.read(lambda c: c.execute(STEPS, {"b_run": run}).all())
        return [to_step(row) for row in rows]

    def children(self, parent: str) -> list[Run]:
        """See the protocol."""
        rows = self._database.read(lambda c: c.execute(CHILDREN, {"b_run": parent}).all())
        return [to_run(row) for row in rows]

    def resume(self, run: str, *, owner: str = "", lease: float = 0.0) -> list[str]:
        """See the protocol."""
        return self._database.write(lambda c: self._trees.resume(c, run, owner, lease))

    def abandon(self, run: str, *, with_children: bool = True) -> list[str]:
        """See the protocol."""
        return self._database.write(
            lambda c: self._trees.abandon(c, run, with_children=with_children)
        )

    def supersede(self, hold: str) -> list[str]:
        """See the protocol."""
        return self._database.write(lambda c: self._trees.supersede(c, hold))

    def durations(self) -> Mapping[tuple[str, str], Sequence[float]]:
        """See the protocol."""
        found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for row in self._database.read(lambda c: c.execute(DURATIONS).all()):
            kind = found[row.workflow, row.name]
            if len(kind) < OF_EACH_KIND:
                kind.append((row.finished_at - row.started_at) / 1000)
        return dict(found)

    def prune(self, older_than: float) -> int:
        """Forget runs that ended more than so many seconds ago, with their trees; count them."""

        def body(connection: Connection) -> int:
            ids = connection.execute(OLD, {"b_age": milliseconds(older_than)}).scalars().all()
            for statement in FORGET:
                connection.execute(statement, {"b_runs": ids})
            return len(ids)

        total = 0
        while found := self._database.write(body):  # in small bites: others want to write too
            total += found
        return total

    def list(
        self,
        *,
        roots: bool = False,
        subject: str = "",
        workflow: str = "",
        states: Collection[RunState] = (),
        limit: int = 100,
    ) -> builtins.list[Run]:
        """See the protocol."""
        wanted = sa.select(run).order_by(run.c.created_at.desc(), run.c.id.desc()).limit(limit)
        if roots:
            wanted = wanted.where(run.c.parent.is_(None))
        if subject:
            wanted = wanted.where(run.c.subject == subject)
        if workflow:
            wanted = wanted.where(run.c.workflow == workflow)
        if states:
            wanted = wanted.where(run.c.state.in_([state.value for state in states]))
        rows = self._database.read(lambda c: c.execute(wanted).all())
        return [to_run(row) for row in rows]


def _narrowed(
    find: sa.Select[Any], roots: Collection[str], sites: Collection[str] | None
) -> tuple[sa.Select[Any], dict[str, Any]]:
    """Look only among the runs of some trees, or of some sites."""
    values: dict[str, Any] = {}
    if roots:
        find, values["b_roots"] = find.where(_OF_ROOTS), sorted(roots)
    if sites is not None:
        find, values["b_sites"] = find.where(_OF_SITES), sorted(sites)
    return find, values


def _claim(
    connection: Connection,
    owner: str,
    lease: float,
    mine: Collection[str],
    due: tuple[sa.Select[Any], Mapping[str, Any]],
) -> Claim | None:
    values = {"b_owner": owner, "b_lease": milliseconds(lease)}
    while True:
        row = connection.execute(*due).one_or_none()
        if row is None:
            return None
        if row.owner != owner or row.id not in mine:
            break
        # Nobody renewed the lease in time, yet the worker is this one and it is at work.
        connection.execute(RENEW, {**values, "b_runs": [row.id]})
    connection.execute(TAKE, {**values, "b_run": row.id})
    if row.holds is not None:
        connection.execute(WATCH, {**values, "b_run": row.id})
    its = dataclasses.replace(to_run(row), state=RunState.RUNNING, owner=owner, epoch=row.epoch + 1)
    if row.epoch == 0:
        # Nothing can have happened to it yet.
        return Claim(run=its, holds=row.holds, now=row.now)
    steps = tuple(map(to_step, connection.execute(STEPS, {"b_run": row.id})))
    slot = connection.execute(SLOT, {"b_run": row.id}).scalar()
    return Claim(run=its, steps=steps, slot=slot, holds=row.holds, now=row.now)


def _heartbeat(
    connection: Connection, owner: str, lease: float, runs: Mapping[str, int]
) -> set[str]:
    values = {"b_owner": owner, "b_lease": milliseconds(lease)}
    connection.execute(RENEW_HOLDS, values)
    if not runs:
        return set()
    found = {row.id: row.epoch for row in connection.execute(EPOCHS, {"b_runs": sorted(runs)})}
    kept = {key for key, epoch in runs.items() if found.get(key) == epoch}
    connection.execute(RENEW, {**values, "b_runs": sorted(kept)})
    return set(runs) - kept
