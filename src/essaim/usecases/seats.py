"""What one student's machine is asked to do, by the student, their teacher or an operator."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim.model import public_keys
from essaim.model.errors import (
    ForbiddenError,
    HeldError,
    InvalidError,
    Problem,
    QuotaError,
    RejectedError,
    UnknownError,
)
from essaim.model.fleet import Role
from essaim.model.machines import Snapshots
from essaim.model.names import MachineName
from essaim.model.plans import Action, Change
from essaim.model.runs import NewRun
from essaim.model.words import both
from essaim.plan.rosters import Standing, Student
from essaim.store.rosters_work import Work
from essaim.usecases import rosters, students
from essaim.usecases.credentials import digest
from essaim.usecases.stacks import store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim.config.rosters import Roster
    from essaim.model.fleet import User
    from essaim.model.machines import Snapshot
    from essaim.usecases.services import Services

LABEL = re.compile(r"[a-z][a-z0-9-]{0,38}")
#: What may be asked of a machine, and the workflow that does it.
VERBS: Mapping[str, str] = {
    "start": "wake",
    "stop": "halt",
    "reset": "reset",
    "snapshot": "keep",
    "restore": "revert",
    "forget": "unkeep",
    "create": "enrol",
    "delete": "remove",
    "retire": "withdraw",
}
#: Only teachers and operators take machines away for good, or with a time of grace.
OF_TEACHERS = frozenset({"retire"})
#: Snapshots of one machine: they take space of everybody's.
MOST_SNAPSHOTS = 5


@dataclass(frozen=True, slots=True)
class Seat:
    """A student's machine, and who asks for it."""

    roster: Roster
    student: Student
    own: bool  #: whether the student themselves asks


def mine(services: Services, by: User) -> list[students.Row]:
    """What an account has, on any roster."""
    return [
        _row(services, Seat(rosters.stored(services, each.roster), each, own=True))
        for each in services.rosters.of_account(by.id)
    ]


def show(services: Services, by: User, name: str, login: str) -> students.Row:
    """One machine: one's own, a pupil's, or for operators anybody's."""
    return _row(services, reach(services, by, name, login))


def roster_rows(services: Services, by: User, name: str) -> list[students.Row]:
    """A whole roster, for its teachers and for operators."""
    check_teacher(services, by, name)
    return students.table(services, name)


def taught(services: Services, by: User) -> list[str]:
    """List the rosters somebody may act on."""
    return services.classes.taught(by.id) if by.role is Role.MEMBER else services.rosters.names()


def check_teacher(services: Services, by: User, name: str) -> None:
    """See that somebody may act on a whole roster; to others there is none of that name."""
    if name not in taught(services, by):
        raise UnknownError(both("seat.no_roster", roster=name))


def reach(services: Services, by: User, name: str, login: str) -> Seat:
    """Find a student's machine for somebody who may act on it.

    To everybody else it is as if it were not there, in the same words.
    """
    found = services.rosters.one(name, login)
    own = found is not None and bool(found.account) and found.account == by.id
    if found is None or not (own or name in taught(services, by)):
        raise UnknownError(both("seat.unknown", roster=name, login=login))
    return Seat(rosters.stored(services, name), found, own=own)


def claim(services: Services, by: User, code: str) -> students.Row:
    """Take possession of one's machine with the code that was given to oneself, once."""
    machine = services.classes.claim(digest(code), by.id)
    found = services.rosters.of_machine(machine) if machine else None
    if found is None:
        raise UnknownError(both("seat.code"))
    seat = Seat(rosters.stored(services, found.roster), found, own=True)
    if found.access.digest:
        bring_key(services, seat, who=by.name)  # whoever had it before has no key there any more
    return show(services, by, found.roster, found.login)


def act(
    services: Services, by: User, name: str, login: str, verb: str, *, label: str = ""
) -> students.Row:
    """Begin something with a machine one may act on; see `VERBS`.  What it does shows in the row.

    ForbiddenError for a machine that was retired, HeldError while something else is done with it.
    """
    seat = reach(services, by, name, login)
    if seat.own and name not in taught(services, by):
        _check_student(services, by, seat, verb)
    begin(services, seat, verb, label=label, who=by.name)
    return show(services, by, name, login)


def begin(services: Services, seat: Seat, verb: str, *, label: str = "", who: str = "") -> str:
    """Begin something with a student's machine; returns the run."""
    check_verb(services, seat, verb, label)
    student, roster = seat.student, seat.roster
    run = f"{VERBS[verb]}-{secrets.token_hex(6)}"
    workflow = VERBS[verb]
    if verb == "create":
        free = rosters.free_addresses(services, roster)
        placed = services.rosters.enrol(roster.site.name, [_coming(student, run)], free)
        student = placed[student.login]
    if verb == "reset":
        services.rosters.unmade([student.machine])
    change = Change(
        key=MachineName.parse(student.machine).machine,
        action=Action.CHANGE,
        verb=workflow,
        machine=student.machine,
    )
    stack = rosters.stack_of(roster, [student])
    plan_id = store(services, stack, roster.lab, [change]).id
    services.journal.add(
        [
            NewRun(
                id=run,
                workflow=workflow,
                subject=student.machine,
                input={
                    "plan": plan_id,
                    "site": roster.site.name,
                    "driver": roster.site.driver,
                    "machine": student.machine,
                    "label": label,
                    "stays": verb == "delete",
                },
                holds=f"student:{student.machine}",
                who=who,
                site=roster.site.name if services.site_queues else "",
            )
        ]
    )
    services.rosters.working({student.machine: run})
    services.courier.wake(run)
    return run


def put_key(services: Services, by: User, name: str, login: str, key: str) -> students.Row:
    """Keep the SSH key a student logs in with, and put it on their machine if that is on.

    For the student and for operators.  A machine that is off takes it when it starts.
    """
    seat = reach(services, by, name, login)
    if not seat.own and by.role is Role.MEMBER:
        # Whoever chooses the key can log in as the student: their teacher cannot.
        raise ForbiddenError(both("seat.key_own"))
    if seat.student.standing is Standing.RETIRED:
        raise ForbiddenError(both("seat.retired", machine=seat.student.machine))
    try:
        line = public_keys.read(key)
    except RejectedError as error:
        raise InvalidError([Problem(both("seat.key_bad"))]) from error
    services.rosters.access.put_own_key(name, login, line)
    bring_key(services, reach(services, by, name, login), who=by.name)
    return show(services, by, name, login)


def bring_keys(services: Services, by: User) -> None:
    """Take the keys of whoever had them before off the machines of a new account."""
    for found in services.rosters.of_account(by.id):
        if found.access.digest:
            seat = Seat(rosters.stored(services, found.roster), found, own=True)
            bring_key(services, seat, who=by.name)


def bring_key(services: Services, seat: Seat, *, who: str) -> None:
    """Begin to put a student's key on their machine, if it is on and does not have it.

    What else is done with the machine right now, or next, brings it as well.
    """
    student = seat.student
    its = student.access
    there = bool(its.digest) and its.key == student.key and not its.error
    if there or not student.address or student.halted or student.standing is not Standing.READY:
        return
    with suppress(HeldError):
        begin(services, seat, "start", who=who)


def snapshots(services: Services, by: User, name: str, login: str) -> Sequence[Snapshot]:
    """List what was kept of a machine one may act on, oldest first."""
    seat = reach(services, by, name, login)
    return _snapshots(services, seat)


def new_label() -> str:
    """Name a snapshot after this moment."""
    return time.strftime("at-%Y%m%d-%H%M%S", time.gmtime())


def check_verb(services: Services, seat: Seat, verb: str, label: str) -> None:
    """See that it can be done with the machine as it stands."""
    student = seat.student
    work = services.journal.get(student.run) if student.run else None
    if work is not None and work.state.moving:
        raise HeldError(
            both("seat.busy", machine=student.machine, doing=work.note or work.workflow)
        )
    if verb == "create":
        if student.standing not in (Standing.WITHOUT, Standing.FAILED):
            raise RejectedError(both("seat.there", machine=student.machine))
        return
    if student.standing is Standing.RETIRED and verb != "delete":
        raise ForbiddenError(both("seat.retired", machine=student.machine))
    if not student.address:
        raise RejectedError(both("seat.none", machine=student.machine))
    if verb in ("snapshot", "restore", "forget"):
        _check_label(services, seat, verb, label)


def _check_label(services: Services, seat: Seat, verb: str, label: str) -> None:
    if not LABEL.fullmatch(label):
        raise InvalidError([Problem(both("seat.label"))])
    labels = {each.label for each in _snapshots(services, seat)}
    machine = seat.student.machine
    if verb == "snapshot" and label in labels:
        raise RejectedError(both("seat.label_taken", machine=machine, label=label))
    if verb == "snapshot" and len(labels) >= MOST_SNAPSHOTS:
        raise QuotaError(both("seat.snapshots", machine=machine, most=MOST_SNAPSHOTS))
    if verb == "restore" and label not in labels:
        raise UnknownError(both("seat.no_label", machine=machine, label=label))


def _snapshots(services: Services, seat: Seat) -> Sequence[Snapshot]:
    driver = services.driver(seat.roster.site)
    if not isinstance(driver, Snapshots):
        raise RejectedError(both("seat.keeps_none", machine=seat.student.machine))
    return driver.snapshots(MachineName.parse(seat.student.machine))


def _check_student(services: Services, by: User, seat: Seat, verb: str) -> None:
    """See that a student asks for what students may."""
    if seat.student.standing is Standing.RETIRED:
        raise ForbiddenError(both("seat.retired", machine=seat.student.machine))
    if verb in OF_TEACHERS:
        raise ForbiddenError(both("seat.teachers"))
    if verb == "create":
        theirs = [each for each in services.rosters.of_account(by.id) if each.address]
        if len(theirs) + 1 > by.quota.machines:
            raise QuotaError(both("seat.quota", most=by.quota.machines))


def _coming(student: Student, run: str) -> Student:
    return Student(roster=student.roster, person=student.person, machine=student.machine, run=run)


def _row(services: Services, seat: Seat) -> students.Row:
    run = services.journal.get(seat.student.run) if seat.student.run else None
    work = Work(run.workflow, run.state, run.note, run.error) if run else None
    return students.row(seat.roster, seat.student, work, students.power(services, seat.roster))
