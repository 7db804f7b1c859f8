"""Whose turn it is: what any number of processes may do, but only one at a time, or once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.store.database import db_now
from essaim.store.rows import milliseconds
from essaim.store.schema import setting

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from essaim.store.database import Database

NOW = sa.select(db_now())
LAST = sa.select(setting.c.value).where(setting.c.name == bindparam("b_name"))
LOCK = LAST.with_for_update()
NOTHING = "0"


class Turns:
    """Keeps when something was last done, and that something is so."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._made: set[str] = set()

    def take(self, name: str, every: float) -> bool:
        """Return True to one caller in so many seconds, whichever comes first."""
        key = f"turn.{name}"
        self._row(key)

        def body(connection: Connection) -> bool:
            last = int(connection.execute(LOCK, {"b_name": key}).scalar_one())
            now = connection.execute(NOW).scalar_one()
            if now - last < milliseconds(every) and last <= now:
                return False
            put = sa.update(setting).where(setting.c.name == key).values(value=str(now))
            connection.execute(put)
            return True

        return self._database.write(body)

    def mark(self, name: str) -> str:
        """Keep that something is so; return a name for this time, the same until `unmark`."""
        if found := self.marked(name):
            return found
        key = f"mark.{name}"
        self._row(key)

        def body(connection: Connection) -> str:
            found: str = connection.execute(LOCK, {"b_name": key}).scalar_one()
            if found != NOTHING:
                return found
            began = f"{name}.{connection.execute(NOW).scalar_one()}"
            connection.execute(sa.update(setting).where(setting.c.name == key).values(value=began))
            return began

        return self._database.write(body)

    def marked(self, name: str) -> str:
        """Return what `mark` gave, or nothing when it is not so."""
        wanted = {"b_name": f"mark.{name}"}
        found = self._database.read(lambda c: c.execute(LAST, wanted).scalar())
        return "" if found in (None, NOTHING) else str(found)

    def unmark(self, name: str, began: str) -> None:
        """Keep that it is so no longer, if it is still the time that `mark` named."""
        its = (setting.c.name == f"mark.{name}", setting.c.value == began)
        clear = sa.update(setting).where(*its).values(value=NOTHING)
        self._database.write(lambda c: c.execute(clear))

    def _row(self, key: str) -> None:
        if key not in self._made:
            row = self._database.insert_missing(setting).values(name=key, value=NOTHING)
            self._database.write(lambda c: c.execute(row))
            self._made.add(key)
