"""Invite codes: who may sign up, and with which rights.  Codes are kept as digests."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Index, Integer, Table, bindparam

from essaim.model.errors import UnknownError
from essaim.model.invites import Invite
from essaim.store.columns import MARIADB, NAME, metadata
from essaim.store.database import Database, db_now
from essaim.store.rows import milliseconds
from essaim.store.school import roster, student, teacher

if TYPE_CHECKING:
    import builtins

    from sqlalchemy.engine import Connection, Row

invite = Table(
    "invite",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("digest", NAME, nullable=False),
    Column("uses", Integer, nullable=False),
    Column("project", NAME, nullable=False),
    Column("roster", NAME, nullable=False),
    Column("who", NAME, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Index("invite_digest", "digest", unique=True),
    Index("invite_expires", "expires_at"),
    **MARIADB,
)

VALID = (invite.c.uses > 0, invite.c.expires_at > db_now())
BY_DIGEST = sa.select(invite).where(invite.c.digest == bindparam("b_digest"), *VALID)
USE = sa.update(invite).where(invite.c.id == bindparam("b_id")).values(uses=invite.c.uses - 1)
#: A student's own code invites as well: it was given to one person.  Empty where there is none.
SEAT = sa.select(student.c.machine).where(
    student.c.code == bindparam("b_digest"), student.c.code != ""
)
CLAIM = (
    sa.update(student)
    .where(student.c.code == bindparam("b_digest"))
    .values(account=bindparam("b_account"), code="", own_key=None)
)


class Invites:
    """Keeps invite codes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self,
        digest: str,
        *,
        uses: int,
        seconds: float,
        project: str = "",
        roster: str = "",
        who: str = "",
    ) -> Invite:
        """Keep a code by its digest."""
        key = f"i-{secrets.token_hex(5)}"
        values = {
            "id": key,
            "digest": digest,
            "uses": uses,
            "project": project,
            "roster": roster,
            "who": who,
        }
        until = db_now() + milliseconds(seconds)
        made = sa.insert(invite).values(created_at=db_now(), expires_at=until, **values)

        def body(connection: Connection) -> Invite:
            connection.execute(made)
            return _invite(connection.execute(sa.select(invite).where(invite.c.id == key)).one())

        return self._database.write(body)

    def list(self) -> builtins.list[Invite]:
        """List the codes with which somebody may still sign up, oldest first."""
        wanted = sa.select(invite).where(*VALID).order_by(invite.c.created_at, invite.c.id)
        return [_invite(row) for row in self._database.read(lambda c: c.execute(wanted).all())]

    def revoke(self, key: str) -> None:
        """Forget a code; UnknownError when there is none."""
        gone = sa.delete(invite).where(invite.c.id == key)
        if not self._database.write(lambda c: c.execute(gone).rowcount):
            raise UnknownError(f"no invite {key}", hint="essaim users invites lists them")

    def valid(self, digest: str) -> bool:
        """Whether somebody may sign up with the code of this digest right now."""

        def body(connection: Connection) -> bool:
            asked = {"b_digest": digest}
            found = connection.execute(BY_DIGEST, asked).first()
            return found is not None or connection.execute(SEAT, asked).first() is not None

        return self._database.read(body)

    def prune(self) -> None:
        """Forget codes that nobody can use any more."""
        self._database.delete(invite, sa.not_(sa.and_(*VALID)))


def use(connection: Connection, digest: str, account: str) -> dict[str, Any] | None:
    """Use a code for a new account, within the caller's transaction.

    Returns the columns that the account gets from it; None when the code is not valid.
    """
    asked = {"b_digest": digest}
    found = connection.execute(BY_DIGEST.with_for_update(), asked).one_or_none()
    if found is None:
        if connection.execute(SEAT.with_for_update(), asked).first() is None:
            return None
        connection.execute(CLAIM, {**asked, "b_account": account})
        return {}
    connection.execute(USE, {"b_id": found.id})
    known = sa.select(roster.c.name).where(roster.c.name == found.roster)
    if connection.execute(known).first() is not None:
        connection.execute(sa.insert(teacher).values(roster=found.roster, account=account))
    return {"project": found.project}


def _invite(row: Row[Any]) -> Invite:
    return Invite(
        id=row.id,
        uses=row.uses,
        project=row.project,
        roster=row.roster,
        by=row.who,
        created_at=row.created_at,
        expires_at=row.expires_at,
    )
