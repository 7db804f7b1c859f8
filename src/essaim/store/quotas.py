"""Counting what people and projects have, and refusing what goes beyond their quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.errors import QuotaError, UnauthorisedError
from essaim.model.fleet import Quota
from essaim.plan.quota import WINDOW, Usage
from essaim.store.database import db_now
from essaim.store.renting import LEASE
from essaim.store.rows import to_user
from essaim.store.schema import lease, person, project

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection

    from essaim.model.fleet import User

# Locked, so that two wishes of one person, or of one project, are counted one after the other.
OWNER = (
    sa.select(person, db_now().label("now"))
    .where(person.c.id == bindparam("b_person"))
    .with_for_update()
)
PROJECT = sa.select(project).where(project.c.name == bindparam("b_name")).with_for_update()


_NOW: sa.BindParameter[int] = bindparam("b_now", type_=sa.BigInteger())
_SINCE: sa.BindParameter[int] = bindparam("b_since", type_=sa.BigInteger())
_BEGUN = sa.func.coalesce(lease.c.granted_at, _NOW)
_BEGAN = sa.case((_BEGUN < _SINCE, _SINCE), else_=_BEGUN)
_UNTIL = sa.func.coalesce(lease.c.ended_at, lease.c.expires_at, _BEGUN + lease.c.seconds * 1000)
_SPAN = sa.case((_UNTIL > _BEGAN, _UNTIL - _BEGAN), else_=0)
_HELD = sa.case((lease.c.ended_at.is_(None), lease.c.machines), else_=0)
USAGE = sa.select(
    sa.func.coalesce(sa.func.sum(_HELD), 0),
    sa.func.coalesce(sa.func.sum(_SPAN * lease.c.machines), 0),
).where(
    sa.or_(
        lease.c.ended_at.is_(None),
        sa.and_(lease.c.ended_at > _SINCE, lease.c.granted_at.is_not(None)),
    )
)
OF_PERSON = USAGE.where(lease.c.person == bindparam("b_whose"))
OF_PROJECT = USAGE.where(lease.c.project == bindparam("b_whose"))


def owner(connection: Connection, user_id: str) -> tuple[User, int]:
    """Lock a person until the transaction ends; return them, and the time."""
    row = connection.execute(OWNER, {"b_person": user_id}).one_or_none()
    if row is None or row.disabled:
        raise UnauthorisedError("this account is disabled", hint="ask an administrator")
    return to_user(row), row.now


def owner_of(connection: Connection, lease_id: str) -> str:
    """Return whose lease it is, unlocked: people are locked before leases everywhere."""
    row = connection.execute(LEASE, {"b_lease": lease_id}).one_or_none()
    return "" if row is None else row.person


def within(
    connection: Connection, user: User, now: int, why_not: Callable[[Quota, Usage], str]
) -> None:
    """QuotaError when a locked person, or their project, may not have what is asked."""
    limits = [(f"{user.name} has a quota", user.quota, OF_PERSON, user.id)]
    if user.project:
        row = connection.execute(PROJECT, {"b_name": user.project}).one_or_none()
        if row is not None:
            quota = Quota(machines=row.machines, hours=row.hours)
            whose = f"project {user.project} has a quota"
            limits.append((whose, quota, OF_PROJECT, user.project))
    for whose, quota, theirs, key in limits:
        problem = why_not(quota, usage(connection, theirs, key, now))
        if problem:
            raise QuotaError(
                f"{whose}: {problem}",
                hint="release a lease, ask for less, or ask an administrator for more",
            )


def usage(connection: Connection, theirs: sa.Select[Any], whose: str, now: int) -> Usage:
    """Count what the leases of somebody amount to; see `plan.quota.usage`."""
    values = {"b_whose": whose, "b_now": now, "b_since": now - WINDOW}
    machines, milliseconds = connection.execute(theirs, values).one()
    return Usage(int(machines), int(milliseconds) / 3_600_000)
