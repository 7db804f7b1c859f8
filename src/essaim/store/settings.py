"""Secrets and choices that all processes of one control plane share."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.store.schema import setting

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from essaim.store.database import Database

GET = sa.select(setting.c.value).where(setting.c.name == bindparam("b_name"))
PUT = sa.update(setting).where(setting.c.name == bindparam("b_name"))


class Settings:
    """Keeps named texts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, name: str) -> str | None:
        """Return a setting, or None."""
        return self._database.read(lambda c: c.execute(GET, {"b_name": name}).scalar())

    def put(self, name: str, value: str) -> None:
        """Keep a setting."""

        def body(connection: Connection) -> None:
            put = PUT.values(value=value)
            if connection.execute(put, {"b_name": name}).rowcount == 0:
                connection.execute(sa.insert(setting).values(name=name, value=value))

        self._database.write(body)

    def drop(self, name: str) -> None:
        """Forget a setting."""
        gone = sa.delete(setting).where(setting.c.name == name)
        self._database.write(lambda c: c.execute(gone))

    def first(self, name: str, value: str) -> str:
        """Keep a setting unless there is one already; return the one that is kept."""
        keep = self._database.insert_missing(setting).values(name=name, value=value)
        found = self.get(name)
        if found is None:
            self._database.write(lambda c: c.execute(keep))
            found = self.get(name)
        if found is None:
            raise LookupError(name)
        return found

    def secret(self, name: str) -> bytes:
        """Return 32 random bytes, made when first asked for: the same for all who ever ask."""
        return bytes.fromhex(self.first(name, secrets.token_hex(32)))
