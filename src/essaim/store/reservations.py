"""Numbers of a site that one holder at most may have: ports, addresses of cards, identifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Index, Table, bindparam

from essaim.model.errors import RejectedError
from essaim.store.columns import MARIADB, NAME, metadata

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy.engine import Connection

    from essaim.store.database import Database

reservation = Table(
    "reservation",
    metadata,
    Column("site", NAME, primary_key=True),
    Column("kind", NAME, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("holder", NAME, nullable=False),
    Index("reservation_holder", "site", "holder", "kind", unique=True),
    **MARIADB,
)

_OF_KIND = (reservation.c.site == bindparam("b_site"), reservation.c.kind == bindparam("b_kind"))
HELD = sa.select(reservation.c.number, reservation.c.holder).where(*_OF_KIND)
AMONG = sa.select(reservation.c.number).where(
    *_OF_KIND, reservation.c.number.in_(bindparam("b_numbers", expanding=True))
)
_OWN = (*_OF_KIND, reservation.c.holder == bindparam("b_holder"))
OWN = sa.select(reservation.c.number).where(*_OWN)
GIVE_UP = sa.delete(reservation).where(*_OWN)
RELEASE = sa.delete(reservation).where(
    reservation.c.site == bindparam("b_site"), reservation.c.holder == bindparam("b_holder")
)

#: Candidates that are looked at together: at first, for the first is mostly free, and at most.
_FEW, _MANY = 4, 256


class Reservations:
    """Who has which number.  Of any number who ask at once, no two are given the same."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def reserve(
        self, site: str, kind: str, holder: str, candidates: Iterable[int], *, anew: bool = False
    ) -> int:
        """Give the holder's number, or the first candidate nobody holds.

        With `anew`, the number it had is given up for another one.  RejectedError when every
        candidate is taken.  However many numbers are held, few of them are read.
        """
        old = self.number(site, kind, holder)
        if old is not None and not anew:
            return old
        choice = tuple(candidates)
        asked, own = {"b_site": site, "b_kind": kind}, {"b_holder": holder}

        def body(connection: Connection) -> int | None:
            has: int | None = connection.execute(OWN, asked | own).scalar()
            if has is not None and has != old:
                return has  # the holder asked twice at once
            number = _first_free(connection, asked, choice, old)
            if number is None:
                raise RejectedError(
                    f"{site}: all {len(choice)} numbers for a {kind} are taken",
                    hint="remove what is not needed any more, or widen the range",
                )
            if has is not None:
                connection.execute(GIVE_UP, asked | own)
            row = {"site": site, "kind": kind, "number": number, "holder": holder}
            connection.execute(self._database.insert_missing(reservation).values(row))
            # Read back: not every database says whether the row went in.
            got: int | None = connection.execute(OWN, asked | own).scalar()
            return got

        while True:
            # Nothing: somebody was quicker with that very number; theirs is seen the next time.
            number = self._database.write(body)
            if number is not None:
                return number

    def number(self, site: str, kind: str, holder: str) -> int | None:
        """The number a holder has; None when it has none."""
        asked = {"b_site": site, "b_kind": kind, "b_holder": holder}
        found: int | None = self._database.read(lambda c: c.execute(OWN, asked).scalar())
        return found

    def release(self, site: str, holder: str) -> None:
        """Give up all the holder has there, of every kind.  Nothing if it has none."""
        self._database.write(
            lambda connection: connection.execute(RELEASE, {"b_site": site, "b_holder": holder})
        )

    def held(self, site: str, kind: str) -> dict[int, str]:
        """Who holds what, by number."""
        asked = {"b_site": site, "b_kind": kind}
        rows = self._database.read(lambda connection: connection.execute(HELD, asked).all())
        return {row.number: row.holder for row in rows}


def _first_free(
    connection: Connection, asked: dict[str, str], choice: tuple[int, ...], avoid: int | None
) -> int | None:
    """The first candidate that nobody holds, besides the one to be avoided."""
    first, many = 0, _FEW
    while few := choice[first : first + many]:
        taken = {avoid, *connection.execute(AMONG, {**asked, "b_numbers": few}).scalars()}
        number = next((n for n in few if n not in taken), None)
        if number is not None:
            return number
        first, many = first + many, min(many * 4, _MANY)
    return None
