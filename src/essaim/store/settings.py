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

    def secret(self, name: str) -> bytes:
        """Return 32 random bytes, made when first asked for: the same for all who ever ask."""
        found = self.get(name)
        if found is None:
            made = {"name": name, "value": secrets.token_hex(32)}
            keep = self._database.insert_missing(setting).values(**made)
            self._database.write(lambda c: c.execute(keep))
            found = self.get(name)
        if found is None:
            raise LookupError(name)
        return bytes.fromhex(found)
