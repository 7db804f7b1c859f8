"""Rosters and their students."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.errors import RejectedError
from essaim.model.school import Person
from essaim.plan.rosters import Standing, Student
from essaim.store.database import db_now
from essaim.store.reservations import HELD, OWN, RELEASE, reservation
from essaim.store.rosters_work import Works
from essaim.store.schema import invite, roster, student, teacher, timetable
from essaim.store.student_access import StudentAccess, read_access

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from sqlalchemy.engine import Connection

    from essaim.store.database import Database

ADDRESS = "address"
NOW = sa.select(db_now())
_OF = student.c.roster == bindparam("b_roster")
_ONE = (_OF, student.c.login == bindparam("b_login"))
_MACHINE = student.c.machine == bindparam("b_machine")
OF_ROSTER = sa.select(student).where(_OF).order_by(student.c.login)
ONE = sa.select(student).where(*_ONE)
OF_ACCOUNT = (
    sa.select(student)
    .where(student.c.account == bindparam("b_account"))
    .order_by(student.c.roster, student.c.login)
)
OF_MACHINE = sa.select(student).where(_MACHINE)
ADD = sa.insert(student).values(
    person=bindparam("b_person"),
    machine=bindparam("b_machine"),
    address=bindparam("b_address"),
    standing=Standing.COMING.value,
    since_at=db_now(),
    made_at=0,
    error="",
    run=bindparam("b_run"),
    account="",
    code="",
    roster_key=bindparam("b_key"),
)
BEGIN = (
    sa.update(student)
    .where(*_ONE)
    .values(
        person=bindparam("b_person"),
        address=bindparam("b_address"),
        standing=Standing.COMING.value,
        since_at=db_now(),
        error="",
        run=bindparam("b_run"),
        roster_key=bindparam("b_key"),
    )
)
STAND = (
    sa.update(student)
    .where(_MACHINE)
    .values(
        standing=bindparam("b_standing"),
        since_at=bindparam("b_since"),
        made_at=bindparam("b_made"),
        halted_at=bindparam("b_halted"),
        error=bindparam("b_error"),
    )
)
FORGET = sa.delete(student).where(_MACHINE)


def holder_of(machine: str) -> str:
    """Who holds the address of a machine; a driver gives up what the machine itself holds."""
    return f"{ADDRESS} {machine}"


class _QuickerError(Exception):
    """Somebody else was quicker with an address."""


class Rosters:
    """Keeps rosters.  Of any number who enrol at once, no two students get the same address."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.works = Works(database)
        self.access = StudentAccess(database)

    def now(self) -> int:
        """The database's clock."""
        return self._database.read(lambda c: c.execute(NOW).scalar_one())

    def put(self, name: str, body: Mapping[str, Any]) -> None:
        """Keep a roster as it was last applied."""
        values = {"body": json.dumps(dict(body)), "updated_at": db_now()}

        def write(connection: Connection) -> None:
            its = roster.c.name == name
            if connection.execute(sa.update(roster).where(its).values(**values)).rowcount == 0:
                connection.execute(sa.insert(roster).values(name=name, **values))

        self._database.write(write)

    def get(self, name: str) -> dict[str, Any] | None:
        """Return a roster as it was last applied, or None."""
        wanted = sa.select(roster.c.body).where(roster.c.name == name)
        found = self._database.read(lambda c: c.execute(wanted).scalar())
        body: dict[str, Any] | None = None if found is None else json.loads(found)
        return body

    def names(self) -> list[str]:
        """List the names of all rosters, sorted."""
        wanted = sa.select(roster.c.name).order_by(roster.c.name)
        return [*self._database.read(lambda c: c.execute(wanted).scalars().all())]

    def drop(self, name: str) -> None:
        """Forget a roster, its students, its teachers and their invites.  Nothing if unknown."""

        def body(connection: Connection) -> None:
            connection.execute(sa.delete(roster).where(roster.c.name == name))
            for table in (student, teacher, timetable, invite):
                connection.execute(sa.delete(table).where(table.c.roster == name))

        self._database.write(body)

    def students(self, of: str) -> dict[str, Student]:
        """Return the students of a roster by login, in its order."""
        rows = self._database.read(lambda c: c.execute(OF_ROSTER, {"b_roster": of}).all())
        return {row.login: _student(row) for row in rows}

    def one(self, of: str, login: str) -> Student | None:
        """Return one student of a roster, or None."""
        asked = {"b_roster": of, "b_login": login}
        row = self._database.read(lambda c: c.execute(ONE, asked).first())
        return None if row is None else _student(row)

    def of_account(self, account: str) -> list[Student]:
        """List who an account is, on any roster."""
        rows = self._database.read(lambda c: c.execute(OF_ACCOUNT, {"b_account": account}).all())
        return [_student(row) for row in rows]

    def of_machine(self, machine: str) -> Student | None:
        """Return whose machine it is, or None."""
        row = self._database.read(lambda c: c.execute(OF_MACHINE, {"b_machine": machine}).first())
        return None if row is None else _student(row)

    def standing(self, standing: Standing) -> list[Student]:
        """List everybody with whom it stands so, on any roster."""
        wanted = sa.select(student).where(student.c.standing == standing.value)
        rows = self._database.read(lambda c: c.execute(wanted).all())
        return [_student(row) for row in rows]

    # -- addresses and standings

    def enrol(
        self, site: str, coming: Sequence[Student], candidates: Iterable[int]
    ) -> dict[str, Student]:
        """Keep that machines are being made, each with an address nobody else has; by login.

        Who has an address keeps it.  RejectedError when there are not enough; then nothing changes.
        """
        choice = list(candidates)
        while True:
            # None: somebody was quicker with an address; theirs is seen the next time.
            done = self._database.write(lambda c: self._enrol(c, site, coming, choice))
            if done is not None:
                return done

    def _enrol(
        self, connection: Connection, site: str, coming: Sequence[Student], choice: Sequence[int]
    ) -> dict[str, Student] | None:
        asked = {"b_site": site, "b_kind": ADDRESS}
        held = {row.holder: row.number for row in connection.execute(HELD, asked)}
        taken = set(held.values())
        free = (number for number in choice if number not in taken)
        fresh: list[dict[str, Any]] = []
        placed: dict[str, Student] = {}
        for each in coming:
            holder = holder_of(each.machine)
            number = held.get(holder)
            if number is None:
                number = next(free, None)
                if number is None:
                    raise _full(site, choice)
                row = {"site": site, "kind": ADDRESS, "number": number, "holder": holder}
                fresh.append(row)
            placed[each.login] = replace(each, address=str(IPv4Address(number)))
        if fresh and not self._reserved(connection, asked, fresh):
            return None
        self._begin(connection, placed.values())
        return placed

    def _reserved(
        self, connection: Connection, asked: Mapping[str, Any], fresh: Sequence[dict[str, Any]]
    ) -> bool:
        connection.execute(self._database.insert_missing(reservation), fresh)
        got = {row.holder: row.number for row in connection.execute(HELD, asked)}
        if all(got.get(row["holder"]) == row["number"] for row in fresh):
            return True
        # Not every database says which rows went in; those that did are taken back.
        for row in fresh:
            connection.execute(RELEASE, {"b_site": row["site"], "b_holder": row["holder"]})
        return False

    def _begin(self, connection: Connection, coming: Iterable[Student]) -> None:
        rows = [
            {
                "roster": each.roster,
                "login": each.login,
                "b_roster": each.roster,
                "b_login": each.login,
                "b_person": json.dumps(_written(each.person)),
                "b_key": each.person.key,
                "b_machine": each.machine,
                "b_address": each.address,
                "b_run": each.run,
            }
            for each in coming
        ]
        names = {row["roster"] for row in rows}
        known = {
            (row.roster, row.login)
            for name in names
            for row in connection.execute(OF_ROSTER, {"b_roster": name})
        }
        old = [row for row in rows if (row["roster"], row["login"]) in known]
        new = [row for row in rows if (row["roster"], row["login"]) not in known]
        if old:
            drop = ("roster", "login", "b_machine")
            connection.execute(
                BEGIN, [{k: v for k, v in row.items() if k not in drop} for row in old]
            )
        if new:
            bound = ("b_roster", "b_login")
            connection.execute(
                ADD, [{k: v for k, v in row.items() if k not in bound} for row in new]
            )

    def release(self, site: str, machine: str) -> None:
        """Give up a machine's address: there is no machine.  Nothing if it has none."""
        values = {"b_site": site, "b_holder": holder_of(machine)}

        def body(connection: Connection) -> None:
            connection.execute(RELEASE, values)
            its = sa.update(student).where(_MACHINE).values(address="", halted_at=0)
            connection.execute(its, {"b_machine": machine})

        self._database.write(body)

    def move(self, site: str, machine: str, candidates: Iterable[int]) -> str:
        """Give a machine another address than it has, the first that nobody else has.

        RejectedError when all are taken; then nothing changes.
        """
        choice = list(candidates)
        own = {"b_site": site, "b_holder": holder_of(machine)}

        def body(connection: Connection) -> str:
            asked = {"b_site": site, "b_kind": ADDRESS}
            taken = {row.number for row in connection.execute(HELD, asked)}
            number = next((number for number in choice if number not in taken), None)
            if number is None:
                raise _full(site, choice)
            connection.execute(RELEASE, own)
            row = {"site": site, "kind": ADDRESS, "number": number, "holder": own["b_holder"]}
            connection.execute(self._database.insert_missing(reservation), [row])
            if connection.execute(OWN, {**asked, **own}).scalar() != number:
                raise _QuickerError
            address = str(IPv4Address(number))
            its = sa.update(student).where(_MACHINE).values(address=address)
            connection.execute(its, {"b_machine": machine})
            return address

        while True:
            # What was begun is undone: theirs is seen the next time.
            with suppress(_QuickerError):
                return self._database.write(body)

    def halt(self, machine: str, *, on: bool) -> None:
        """Keep whether a machine is wanted on, or was stopped by somebody."""
        its = sa.update(student).where(_MACHINE).values(halted_at=0 if on else db_now())
        self._database.write(lambda c: c.execute(its, {"b_machine": machine}))

    def stand(self, machine: str, standing: Standing, error: str = "", *, on: bool = False) -> None:
        """Keep how it stands with a student's machine, and with `on` that it is wanted on.

        Nothing if nobody has it.
        """

        def body(connection: Connection) -> None:
            row = connection.execute(OF_MACHINE, {"b_machine": machine}).first()
            if row is None:
                return
            now = connection.execute(NOW).scalar_one()
            made = row.made_at or (now if standing is Standing.READY else 0)
            values = {
                "b_machine": machine,
                "b_standing": standing.value,
                "b_since": row.since_at if row.standing == standing.value else now,
                "b_made": 0 if standing is Standing.WITHOUT else made,
                "b_halted": 0 if on else row.halted_at,
                "b_error": error,
            }
            connection.execute(STAND, values)

        self._database.write(body)

    def working(self, runs: Mapping[str, str]) -> None:
        """Keep which run works on which machine."""
        put = sa.update(student).where(_MACHINE).values(run=bindparam("b_run"))
        rows = [{"b_machine": machine, "b_run": run} for machine, run in runs.items()]
        if rows:
            self._database.write(lambda c: c.execute(put, rows))

    def unmade(self, machines: Collection[str]) -> None:
        """Keep that there is nothing to lose on these machines."""
        its = sa.update(student).where(_MACHINE).values(made_at=0)
        self._database.write(lambda c: c.execute(its, [{"b_machine": each} for each in machines]))

    def forget(self, site: str, machines: Collection[str]) -> None:
        """Forget students, and give up the addresses of their machines."""

        def body(connection: Connection) -> None:
            for machine in machines:
                connection.execute(FORGET, {"b_machine": machine})
                connection.execute(RELEASE, {"b_site": site, "b_holder": holder_of(machine)})

        self._database.write(body)


def _student(row: Any) -> Student:
    return Student(
        roster=row.roster,
        person=Person(**json.loads(row.person), key=row.roster_key or ""),
        machine=row.machine,
        address=row.address,
        standing=Standing(row.standing),
        since=row.since_at,
        made=row.made_at,
        halted=row.halted_at,
        error=row.error,
        run=row.run,
        account=row.account,
        own_key=row.own_key or "",
        access=read_access(row.access),
    )


def _written(person: Person) -> dict[str, Any]:
    """A person without the key, which has a column: earlier versions know no such field."""
    return {field: value for field, value in asdict(person).items() if field != "key"}


def _full(site: str, choice: Sequence[int]) -> RejectedError:
    return RejectedError(
        f"{site}: all {len(choice)} addresses of the roster's network are taken",
        hint="widen network.range or network.cidr, or remove what is not needed any more",
    )
