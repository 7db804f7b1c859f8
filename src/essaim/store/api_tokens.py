"""Tokens of programs, as digests.  Whoever is disabled has none that count."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.errors import RejectedError
from essaim.model.fleet import ApiToken, Scope, User
from essaim.store.database import db_now
from essaim.store.meeting import api_token
from essaim.store.rows import milliseconds, to_user
from essaim.store.schema import person

if TYPE_CHECKING:
    import builtins

    from sqlalchemy import Row
    from sqlalchemy.engine import Connection

    from essaim.store.database import Database

#: Tokens that one person may have at once.
MOST = 50
#: Seconds after which it is written down again that a token was used.
NOTED_EVERY = 300.0

ITS = [
    column.label(f"token_{column.name}")
    for column in api_token.c
    if column.name not in ("digest", "person")
]
STALE = sa.or_(
    api_token.c.used_at.is_(None), api_token.c.used_at < db_now() - milliseconds(NOTED_EVERY)
)
COUNTS = api_token.c.expires_at > db_now()
BY_DIGEST = (
    sa.select(person, *ITS, STALE.label("stale"))
    .join(api_token, api_token.c.person == person.c.id)
    .where(api_token.c.digest == bindparam("b_digest"), COUNTS, person.c.disabled.is_(sa.false()))
)
OF_PERSON = sa.select(*ITS).where(api_token.c.person == bindparam("b_person"), COUNTS)
USED = sa.update(api_token).where(api_token.c.id == bindparam("b_id")).values(used_at=db_now())


class ApiTokens:
    """Keeps the tokens of programs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, user_id: str, digest: str, name: str, scope: Scope, seconds: float) -> ApiToken:
        """Keep a token; RejectedError when the person has too many."""
        key = f"t-{secrets.token_hex(6)}"
        values = {
            "id": key, "digest": digest, "person": user_id, "name": name, "scope": scope.value
        }  # fmt: skip
        until = db_now() + milliseconds(seconds)

        def body(connection: Connection) -> ApiToken:
            rows = connection.execute(OF_PERSON, {"b_person": user_id}).all()
            if len(rows) >= MOST:
                raise RejectedError(
                    f"nobody has more than {MOST} API tokens at once",
                    hint="essaim tokens lists them, essaim tokens revoke ends one",
                )
            connection.execute(
                sa.insert(api_token).values(created_at=db_now(), expires_at=until, **values)
            )
            made = OF_PERSON.where(api_token.c.id == key)
            return _token(connection.execute(made, {"b_person": user_id}).one())

        return self._database.write(body)

    def find(self, digest: str) -> tuple[User, ApiToken] | None:
        """Return whose token it is, and the token; None when it counts no more."""
        row = self._database.read(lambda c: c.execute(BY_DIGEST, {"b_digest": digest}).first())
        if row is None:
            return None
        if row.stale:
            its = {"b_id": row.token_id}
            self._database.write(lambda c: c.execute(USED, its))
        return to_user(row), _token(row)

    def list(self, user_id: str) -> builtins.list[ApiToken]:
        """List somebody's tokens that count, the oldest first."""
        its = OF_PERSON.order_by(api_token.c.created_at, api_token.c.id)
        rows = self._database.read(lambda c: c.execute(its, {"b_person": user_id}).all())
        return [_token(row) for row in rows]

    def revoke(self, user_id: str, token_id: str) -> bool:
        """End one of somebody's tokens; return whether there was one."""
        its = (api_token.c.person == user_id, api_token.c.id == token_id)
        gone = sa.delete(api_token).where(*its)
        return bool(self._database.write(lambda c: c.execute(gone).rowcount))

    def prune(self, older_than: float) -> None:
        """Forget tokens that were over so many seconds ago."""
        self._database.delete(
            api_token, api_token.c.expires_at < db_now() - milliseconds(older_than)
        )


def _token(row: Row[Any]) -> ApiToken:
    return ApiToken(
        id=row.token_id,
        name=row.token_name,
        scope=Scope(row.token_scope),
        created_at=row.token_created_at,
        expires_at=row.token_expires_at,
        used_at=row.token_used_at,
    )
