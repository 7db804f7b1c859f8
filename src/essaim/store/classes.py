"""Who teaches a roster, which account a student has, and when classes begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.store.database import db_now
from essaim.store.schema import student, teacher, timetable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine import Connection

    from essaim.store.database import Database

CLAIM = (
    sa.update(student)
    .where(student.c.code == bindparam("b_code"))
    .values(account=bindparam("b_account"), code="")
)
INVITE = (
    sa.update(student)
    .where(student.c.roster == bindparam("b_roster"), student.c.login == bindparam("b_login"))
    .values(code=bindparam("b_code"))
)


@dataclass(frozen=True, slots=True)
class Lesson:
    """When something is done with a whole roster."""

    roster: str
    verb: str  #: start or stop
    times: str  #: as it was written
    next_at: int  #: milliseconds since 1970


class Classes:
    """Keeps who may act on whose machine.  Accounts are named by their ids."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def teachers(self, roster: str) -> list[str]:
        """List the accounts that teach a roster."""
        wanted = sa.select(teacher.c.account).where(teacher.c.roster == roster)
        return sorted(self._database.read(lambda c: c.execute(wanted).scalars().all()))

    def taught(self, account: str) -> list[str]:
        """List the rosters that an account teaches."""
        wanted = sa.select(teacher.c.roster).where(teacher.c.account == account)
        return sorted(self._database.read(lambda c: c.execute(wanted).scalars().all()))

    def add_teacher(self, roster: str, account: str) -> None:
        """Let an account act on the machines of a roster."""
        row = self._database.insert_missing(teacher).values(roster=roster, account=account)
        self._database.write(lambda c: c.execute(row))

    def drop_teacher(self, roster: str, account: str) -> None:
        """Let it no more.  Nothing if it did not."""
        its = sa.delete(teacher).where(teacher.c.roster == roster, teacher.c.account == account)
        self._database.write(lambda c: c.execute(its))

    def invite(self, roster: str, codes: Mapping[str, str]) -> None:
        """Keep the digests of codes with which students claim their machines, by login."""
        rows = [
            {"b_roster": roster, "b_login": login, "b_code": code} for login, code in codes.items()
        ]
        if rows:
            self._database.write(lambda c: c.execute(INVITE, rows))

    def claim(self, code: str, account: str) -> str:
        """Give a machine to the account that shows its code, once; return the machine, or nothing.

        `code` is the digest that `invite` was given.
        """

        def body(connection: Connection) -> str:
            # An empty code is what everybody has who was not invited.
            its = sa.select(student.c.machine, student.c.account).where(
                student.c.code == code, student.c.code != ""
            )
            found = connection.execute(its.with_for_update()).first()
            if found is None:
                return ""
            if found.account != account:
                # The key of whoever had it before opens nothing any more.
                theirs = sa.update(student).where(student.c.code == code)
                connection.execute(theirs.values(own_key=None))
            connection.execute(CLAIM, {"b_code": code, "b_account": account})
            return str(found.machine)

        return self._database.write(body)

    def lessons(self, roster: str = "") -> list[Lesson]:
        """List when what is done, of one roster or all."""
        wanted = sa.select(timetable).order_by(timetable.c.roster, timetable.c.verb)
        if roster:
            wanted = wanted.where(timetable.c.roster == roster)
        rows = self._database.read(lambda c: c.execute(wanted).all())
        return [Lesson(row.roster, row.verb, row.times, row.next_at) for row in rows]

    def due(self) -> list[Lesson]:
        """List what is to be done by now."""
        wanted = sa.select(timetable).where(timetable.c.next_at <= db_now())
        rows = self._database.read(lambda c: c.execute(wanted).all())
        return [Lesson(row.roster, row.verb, row.times, row.next_at) for row in rows]

    def put_lesson(self, lesson: Lesson) -> None:
        """Keep when something is done; what was kept of that kind before is forgotten."""
        its = (timetable.c.roster == lesson.roster, timetable.c.verb == lesson.verb)
        values = {"times": lesson.times, "next_at": lesson.next_at}

        def body(connection: Connection) -> None:
            if connection.execute(sa.update(timetable).where(*its).values(**values)).rowcount == 0:
                row = {"roster": lesson.roster, "verb": lesson.verb, **values}
                connection.execute(sa.insert(timetable).values(**row))

        self._database.write(body)

    def move_lesson(self, lesson: Lesson, next_at: int) -> bool:
        """Set the next time, unless somebody else has; so of many who see it due, one acts."""
        its = (
            timetable.c.roster == lesson.roster,
            timetable.c.verb == lesson.verb,
            timetable.c.next_at == lesson.next_at,
        )
        move = sa.update(timetable).where(*its).values(next_at=next_at)
        return self._database.write(lambda c: c.execute(move).rowcount) == 1

    def drop_lessons(self, roster: str) -> None:
        """Do nothing by the clock any more."""
        its = sa.delete(timetable).where(timetable.c.roster == roster)
        self._database.write(lambda c: c.execute(its))
