"""The SSH keys of students, and what was put on their machines for them to log in with."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.plan.rosters import Access
from essaim.store.schema import student

if TYPE_CHECKING:
    from collections.abc import Mapping

    from essaim.store.database import Database

_ONE = (student.c.roster == bindparam("b_roster"), student.c.login == bindparam("b_login"))


class StudentAccess:
    """Keeps how students log in to their machines."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put_own_key(self, roster: str, login: str, key: str) -> None:
        """Keep the key a student has sent; from now on it counts instead of the roster's."""
        self._put(roster, {login: key}, "own_key")

    def put_roster_keys(self, roster: str, keys: Mapping[str, str]) -> None:
        """Keep the keys that a roster names, by login."""
        self._put(roster, keys, "roster_key")

    def _put(self, roster: str, keys: Mapping[str, str], column: str) -> None:
        put = sa.update(student).where(*_ONE).values({column: bindparam("b_key")})
        rows = [{"b_roster": roster, "b_login": login, "b_key": key} for login, key in keys.items()]
        if rows:
            self._database.write(lambda c: c.execute(put, rows))

    def put(self, machine: str, access: Access) -> None:
        """Keep what was put on a machine, or why it was not.  Nothing if nobody has it."""
        its = sa.update(student).where(student.c.machine == machine)
        put = its.values(access=json.dumps(asdict(access)))
        self._database.write(lambda c: c.execute(put))


def read_access(text: str | None) -> Access:
    """Read what `put` wrote; an earlier version has written nothing, a later one perhaps more."""
    found = json.loads(text) if text else {}
    return Access(**{each.name: found.get(each.name, "") for each in fields(Access)})
