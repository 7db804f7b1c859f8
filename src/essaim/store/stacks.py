"""Stacks, their machines, what was applied to them, and plans."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from essaim.model.plans import Applied
from essaim.store.database import Database, db_now
from essaim.store.schema import applied, machine, plan, stack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine import Connection


class Stacks:
    """Keeps what was asked for and what was done.  Bodies are JSON objects."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put_stack(self, name: str, body: Mapping[str, Any]) -> None:
        """Keep a stack as it was last applied."""
        values = {"body": _json(body), "updated_at": db_now()}
        self._database.write(lambda c: _put(c, stack, {"name": name}, values))

    def get_stack(self, name: str) -> dict[str, Any] | None:
        """Return the stack as it was last applied, or None."""
        return self._body(sa.select(stack.c.body).where(stack.c.name == name))

    def list_stacks(self) -> list[str]:
        """List the names of all stacks, sorted."""
        wanted = sa.select(stack.c.name).order_by(stack.c.name)
        return list(self._database.read(lambda c: c.execute(wanted).scalars().all()))

    def drop_stack(self, name: str) -> None:
        """Forget a stack, its machines and what was applied to them.  Nothing if unknown."""

        def body(connection: Connection) -> None:
            connection.execute(sa.delete(stack).where(stack.c.name == name))
            _forget_machines(connection, name)

        self._database.write(body)

    def put_machine(self, name: str, of_stack: str, body: Mapping[str, Any]) -> None:
        """Keep a machine, named `STACK/MACHINE`."""
        values = {"stack": of_stack, "body": _json(body)}
        self._database.write(lambda c: _put(c, machine, {"name": name}, values))

    def get_machine(self, name: str) -> dict[str, Any] | None:
        """Return the machine `STACK/MACHINE` as it was kept, or None."""
        return self._body(sa.select(machine.c.body).where(machine.c.name == name))

    def machines(self, of_stack: str) -> dict[str, dict[str, Any]]:
        """Return the machines of a stack as they were kept, by name."""
        wanted = (
            sa.select(machine.c.name, machine.c.body)
            .where(machine.c.stack == of_stack)
            .order_by(machine.c.name)
        )
        rows = self._database.read(lambda c: c.execute(wanted).all())
        return {row.name: json.loads(row.body) for row in rows}

    def forget_machine(self, name: str) -> None:
        """Forget a machine and what was applied to it.  Nothing if unknown."""

        def body(connection: Connection) -> None:
            connection.execute(sa.delete(machine).where(machine.c.name == name))
            connection.execute(sa.delete(applied).where(applied.c.machine == name))

        self._database.write(body)

    def forget_machines(self, of_stack: str) -> None:
        """Forget all machines of a stack and what was applied to them."""
        self._database.write(lambda c: _forget_machines(c, of_stack))

    def record_applied(self, *done: Applied) -> None:
        """Keep that these roles were applied, in one transaction."""

        def body(connection: Connection) -> None:
            for one in sorted(done, key=lambda one: (one.machine, one.role)):
                values = {"digest": one.digest, "needs": one.needs, "boot": one.boot}
                _put(connection, applied, {"machine": one.machine, "role": one.role}, values)

        self._database.write(body)

    def applied(self, of_stack: str) -> dict[tuple[str, str], Applied]:
        """Return what was applied to the machines of a stack, by machine and role."""
        wanted = sa.select(applied).where(_in_stack(applied.c.machine, of_stack))
        rows = self._database.read(lambda c: c.execute(wanted).all())
        return {
            (row.machine, row.role): Applied(
                machine=row.machine,
                role=row.role,
                digest=row.digest,
                needs=row.needs,
                boot=row.boot,
            )
            for row in rows
        }

    def put_plan(self, plan_id: str, of_stack: str, body: Mapping[str, Any]) -> None:
        """Keep a plan; one that is there already stays as it is."""
        values = {"id": plan_id, "stack": of_stack, "body": _json(body), "created_at": db_now()}
        keep = self._database.insert_missing(plan).values(**values)
        self._database.write(lambda c: c.execute(keep))

    def get_plan(self, plan_id: str) -> dict[str, Any] | None:
        """Return the plan, or None."""
        return self._body(sa.select(plan.c.body).where(plan.c.id == plan_id))

    def prune_plans(self, older_than: float) -> int:
        """Forget plans made more than so many seconds ago; return how many."""
        old = sa.delete(plan).where(plan.c.created_at < db_now() - round(older_than * 1000))
        return self._database.write(lambda c: c.execute(old).rowcount)

    def _body(self, wanted: sa.Select[str]) -> dict[str, Any] | None:
        found = self._database.read(lambda c: c.execute(wanted).scalar())
        if found is None:
            return None
        body: dict[str, Any] = json.loads(found)
        return body


def _put(
    connection: Connection, table: sa.Table, key: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    its = [table.c[name] == value for name, value in key.items()]
    if connection.execute(sa.update(table).where(*its).values(**values)).rowcount == 0:
        connection.execute(sa.insert(table).values(**key, **values))


def _forget_machines(connection: Connection, of_stack: str) -> None:
    connection.execute(sa.delete(machine).where(machine.c.stack == of_stack))
    connection.execute(sa.delete(applied).where(_in_stack(applied.c.machine, of_stack)))


def _in_stack(column: sa.Column[str], name: str) -> sa.ColumnElement[bool]:
    # `0` is the character after the slash: a range, so that an index serves it.
    return sa.and_(column > f"{name}/", column < f"{name}0")


def _json(body: Mapping[str, Any]) -> str:
    return json.dumps(dict(body), allow_nan=False)
