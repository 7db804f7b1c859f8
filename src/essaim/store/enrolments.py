"""Enrolments, with which machines join, and the challenges they sign.  Tokens come as digests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.errors import UnauthorisedError
from essaim.store.database import Database, db_now
from essaim.store.rows import milliseconds, to_enrolment
from essaim.store.schema import challenge, enrolment

if TYPE_CHECKING:
    import builtins

    from sqlalchemy import Row
    from sqlalchemy.engine import Connection

    from essaim.model.fleet import Enrolment

#: Seconds within which a challenge is signed and shown.
CHALLENGE_LASTS = 300.0

_USABLE = (enrolment.c.uses > 0, enrolment.c.expires_at > db_now())
_THIS = enrolment.c.digest == bindparam("b_digest")
SPEND = sa.update(enrolment).where(_THIS, *_USABLE).values(uses=enrolment.c.uses - 1)
TERMS = sa.select(enrolment).where(_THIS)
USABLE = sa.select(enrolment).where(*_USABLE).order_by(enrolment.c.expires_at, enrolment.c.digest)


def spend(connection: Connection, digest: str) -> Row[Any]:
    """Use an enrolment once, within a transaction; return it.  UnauthorisedError if it is over."""
    if connection.execute(SPEND, {"b_digest": digest}).rowcount == 0:
        raise _over()
    return connection.execute(TERMS, {"b_digest": digest}).one()


class Enrolments:
    """Keeps enrolments and challenges."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self) -> builtins.list[Enrolment]:
        """List those with which a machine may still join; the first to end comes first."""
        return [to_enrolment(row) for row in self._database.read(lambda c: c.execute(USABLE).all())]

    def revoke(self, enrolment_id: str) -> bool:
        """Forget an enrolment, and what was to be signed for it; False when there is none."""
        mine = sa.select(enrolment.c.digest).where(enrolment.c.digest.startswith(enrolment_id))

        def body(connection: Connection) -> bool:
            found = list(connection.execute(mine).scalars())
            connection.execute(sa.delete(challenge).where(challenge.c.enrolment.in_(found)))
            gone = sa.delete(enrolment).where(enrolment.c.digest.in_(found))
            return connection.execute(gone).rowcount > 0

        return self._database.write(body)

    def add_challenge(self, digest: str, enrolment_digest: str) -> None:
        """Keep what a machine shall sign; UnauthorisedError when its enrolment is over."""
        known = sa.select(enrolment.c.digest).where(_THIS, *_USABLE)
        until = db_now() + milliseconds(CHALLENGE_LASTS)
        keep = sa.insert(challenge).values(
            digest=digest, enrolment=enrolment_digest, expires_at=until
        )

        def body(connection: Connection) -> None:
            if connection.execute(known, {"b_digest": enrolment_digest}).first() is None:
                raise _over()
            connection.execute(keep)

        self._database.write(body)

    def take_challenge(self, digest: str, enrolment_digest: str) -> bool:
        """Whether this was to be signed for that enrolment; it is not any more."""
        mine = (challenge.c.digest == digest, challenge.c.enrolment == enrolment_digest)
        take = sa.delete(challenge).where(*mine, challenge.c.expires_at > db_now())
        return self._database.write(lambda c: c.execute(take).rowcount == 1)

    def prune(self, older_than: float) -> int:
        """Forget enrolments that were over so many seconds ago; return how many."""
        before = db_now() - milliseconds(older_than)

        def body(connection: Connection) -> int:
            connection.execute(sa.delete(challenge).where(challenge.c.expires_at < db_now()))
            old = sa.delete(enrolment).where(enrolment.c.expires_at < before)
            return connection.execute(old).rowcount

        return self._database.write(body)


def _over() -> UnauthorisedError:
    return UnauthorisedError(
        "this enrolment token is unknown, used up or over",
        hint="ask an administrator for a new one",
    )
