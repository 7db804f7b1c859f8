"""Adding runs: each in the state it can be in now, with its waits and its hold."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.errors import HeldError, UnknownError
from essaim.model.journal import LostError
from essaim.model.runs import NewRun, RunState
from essaim.store.database import db_now
from essaim.store.rows import fitting, milliseconds
from essaim.store.schema import hold, node, run, wait

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.engine import Connection

# Locked, so that a run waited for cannot end between being looked at and being waited for.
KNOWN = (
    sa.select(run.c.id, run.c.root, run.c.site, run.c.state, run.c.epoch)
    .where(run.c.id.in_(bindparam("b_runs", expanding=True)))
    .order_by(run.c.id)
    .with_for_update()
)
ADD = sa.insert(run).values(
    state=bindparam("b_state"),
    undoing=False,
    note="",
    error="",
    owner="",
    epoch=0,
    woken=False,
    created_at=db_now(),
    due_at=sa.case((bindparam("b_ready", type_=sa.Boolean()), db_now()), else_=None),
)
WAIT = sa.insert(wait)
#: An option of a database's engine: the runs of a site's nodes are for its own workers.
SITE_QUEUES = "essaim_site_queues"
HOLDER = (
    sa.select(hold.c.name, hold.c.run, hold.c.since_at, run.c.who, run.c.subject)
    .join(run, run.c.id == hold.c.run)
    .where(hold.c.name == bindparam("b_name"))
)
HOLD = sa.insert(hold).values(
    until_at=db_now() + bindparam("b_lease"),
    since_at=db_now(),
)


def add(
    connection: Connection,
    runs: Sequence[NewRun],
    *,
    owner: str,
    lease: float,
    by: tuple[str, int] | None,
) -> None:
    """Add runs; see `model.journal.Journal.add`."""
    known = _known(connection, runs, by)
    fresh = {new.id: new for new in runs if new.id not in known}
    for new in fresh.values():
        if new.holds is not None:
            take_hold(connection, new.holds, new.id, owner, lease)
    roots = {key: row.root for key, row in known.items()}
    undone = {key for key, row in known.items() if row.state != RunState.DONE.value} | set(fresh)
    waits = {new.id: _waits(new, known, fresh, undone) for new in fresh.values()}
    rows = [
        _row(
            new,
            _root(new, roots, fresh),
            waits=bool(waits[new.id]),
            site=_site(new, known, fresh),
        )
        for new in fresh.values()
    ]
    if rows:
        connection.execute(ADD, rows)
    pairs = [{"run": key, "on_run": on} for key, others in waits.items() for on in sorted(others)]
    if pairs:
        connection.execute(WAIT, pairs)


def add_new(connection: Connection, new: NewRun) -> None:
    """Add one run of its own whose id nobody can have used: there is nothing to look at first."""
    connection.execute(ADD, _row(new, new.id, waits=False, site=new.site))


def site_of(connection: Connection, its: sa.ColumnElement[bool]) -> str:
    """Name the site of some nodes, if their runs are for its own workers.

    Nodes of several sites have none: whoever carries runs of no site must reach them all.
    """
    if not connection.engine.get_execution_options().get(SITE_QUEUES):
        return ""
    found = connection.execute(sa.select(node.c.site).where(its).distinct()).scalars().all()
    return found[0] if len(found) == 1 else ""


def _row(new: NewRun, root: str, *, waits: bool, site: str) -> dict[str, Any]:
    return {
        "id": new.id,
        "root": root,
        "parent": new.parent,
        "workflow": new.workflow,
        "subject": new.subject,
        "input": json.dumps(dict(new.input), allow_nan=False),
        "who": fitting(new.who),
        "holds": new.holds,
        "site": site,
        "b_state": (RunState.WAITING if waits else RunState.READY).value,
        "b_ready": not waits,
    }


def take_hold(connection: Connection, name: str, run_id: str, owner: str, lease: float) -> None:
    """Keep a name for a run; HeldError says who has it."""
    found = connection.execute(HOLDER, {"b_name": name}).one_or_none()
    if found is None:
        values = {"name": name, "run": run_id, "owner": owner, "b_lease": milliseconds(lease)}
        connection.execute(HOLD, values)
    elif found.run != run_id:
        raise held(found)


def held(found: Any) -> HeldError:
    """Make the error that says who holds a name, since when, and what can be done."""
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.since_at / 1000))
    by = f" of {found.who}" if found.who else ""
    return HeldError(
        f"{found.name} is held by run {found.run}{by} on {found.subject} since {since}",
        hint=f"wait for it, or look at it with: essaim runs show {found.run}",
        run_id=found.run,
    )


def _known(
    connection: Connection, runs: Sequence[NewRun], by: tuple[str, int] | None
) -> Mapping[str, Any]:
    keys = {new.id for new in runs}
    keys.update(new.parent for new in runs if new.parent is not None)
    keys.update(on for new in runs for on in new.waits_for)
    if by is not None:
        keys.add(by[0])
    known = {row.id: row for row in connection.execute(KNOWN, {"b_runs": sorted(keys)})}
    if by is not None:
        asking = known.get(by[0])
        if asking is None or (asking.epoch, asking.state) != (by[1], RunState.RUNNING.value):
            raise LostError(f"run {by[0]} is no longer at epoch {by[1]}")
    return known


def _waits(
    new: NewRun, known: Mapping[str, Any], fresh: Mapping[str, NewRun], undone: set[str]
) -> set[str]:
    for on in new.waits_for:
        if on not in known and on not in fresh:
            raise UnknownError(f"run {new.id} waits for {on}, which does not exist")
    return set(new.waits_for) & undone


def _root(new: NewRun, roots: Mapping[str, str], fresh: Mapping[str, NewRun]) -> str:
    while new.parent is not None:
        if new.parent in roots:
            return roots[new.parent]
        if new.parent not in fresh:
            raise UnknownError(f"run {new.id} has parent {new.parent}, which does not exist")
        new = fresh[new.parent]
    return new.id


def _site(new: NewRun, known: Mapping[str, Any], fresh: Mapping[str, NewRun]) -> str:
    """Name the site of a run: its own, else that of the first one above it that has one."""
    while not new.site and new.parent is not None:
        if new.parent in known:
            site: str = known[new.parent].site
            return site
        new = fresh[new.parent]
    return new.site
