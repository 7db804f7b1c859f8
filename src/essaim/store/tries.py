"""How often somebody has tried, counted by all processes together."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.store.database import Database, db_now
from essaim.store.meeting import attempt
from essaim.store.rows import milliseconds

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

NOW = sa.select(db_now())
LOCK = sa.select(attempt.c.even_at).where(attempt.c.id == bindparam("b_id")).with_for_update()
PUT = (
    sa.update(attempt).where(attempt.c.id == bindparam("b_id")).values(even_at=bindparam("b_even"))
)
BACK = (
    sa.update(attempt)
    .where(attempt.c.id == bindparam("b_id"))
    .values(even_at=attempt.c.even_at - bindparam("b_gap"))
)
PRUNE = sa.delete(attempt).where(attempt.c.even_at < db_now())


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One more of a kind by somebody, of which one may happen every `gap` seconds."""

    kind: str
    key: str
    gap: float
    within: float  #: seconds' worth of them may come at once

    @property
    def id(self) -> str:
        """What it is counted by: no name of a person or a network is kept."""
        said = f"{self.kind}\0{self.key}".encode()
        return hashlib.blake2b(said, digest_size=16).hexdigest()


class Tries:
    """Counts tries.  A row says when its owner will have made up for all of them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add = database.insert_missing(attempt)

    def take(self, tries: Sequence[Try]) -> float:
        """Count all and return 0, or none and the seconds until they may be made."""
        # In one order everywhere, so that two who count the same do not wait for each other.
        wanted = sorted(tries, key=lambda each: each.id)

        def body(connection: Connection) -> float:
            evens = [self._even_at(connection, each.id) for each in wanted]
            now: int = connection.execute(NOW).scalar_one()
            even = [
                max(at, now) + milliseconds(its.gap) for its, at in zip(wanted, evens, strict=True)
            ]
            late = [
                at - now - milliseconds(its.within) for its, at in zip(wanted, even, strict=True)
            ]
            if max(late) > 0:
                return max(late) / 1000
            for each, at in zip(wanted, even, strict=True):
                connection.execute(PUT, {"b_id": each.id, "b_even": at})
            return 0.0

        return self._database.write(body)

    def _even_at(self, connection: Connection, key: str) -> int:
        """Read somebody's row, which nobody else may change from now on."""
        # One that has just been seen to be there may be forgotten in the moment before it is read.
        while (found := connection.execute(LOCK, {"b_id": key}).scalar()) is None:
            connection.execute(self._add, {"id": key, "even_at": 0})
        return int(found)

    def give_back(self, one: Try) -> None:
        """Take back one, which turned out not to be a guess."""
        its = {"b_id": one.id, "b_gap": milliseconds(one.gap)}
        self._database.write(lambda c: c.execute(BACK, its))

    def prune(self) -> None:
        """Forget those who have made up for all."""
        self._database.write(lambda c: c.execute(PRUNE))
