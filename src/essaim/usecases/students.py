"""Look at the students of a roster: who has what, what failed and why, what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from essaim.model.errors import EssaimError, UnknownError
from essaim.model.public_keys import fingerprint
from essaim.model.runs import RunState
from essaim.model.spelling import meant
from essaim.plan.rosters import Standing, Student
from essaim.usecases import rosters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from essaim.config.rosters import Roster
    from essaim.model.machines import Observed
    from essaim.store.rosters_work import Work
    from essaim.usecases.services import Services

#: How long something has taken so far is not what it is.
_SO_FAR = re.compile(r"\s*\([^)]*\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One student as a person reads them."""

    login: str
    name: str
    group: str
    machine: str
    address: str
    state: str  #: coming, ready, failed, stuck, retired, without
    power: str  #: on, off, absent; nothing when nobody looked
    since: int  #: milliseconds since 1970
    until: int  #: when a retired machine is destroyed; 0 for the others
    doing: str  #: what is done with it right now, or waited for
    failed: str  #: why, in words
    todo: str  #: what to do about it
    key: str = ""  #: fingerprint of the SSH key that opens it; nothing when none is known
    key_ready: bool = False  #: whether the machine has that key by now
    entered: bool = False  #: whether the student has an account on it
    not_entered: str = ""  #: why the account, or its key, could not be put there


def table(services: Services, name: str, seen: Mapping[str, Observed] | None = None) -> list[Row]:
    """Everybody of a roster, in the order of their logins.

    Unless somebody has `seen` them just now, the site is asked once which machines run; when it
    does not answer, nothing is said about it.
    """
    roster = rosters.stored(services, name)
    works = services.rosters.works.last(name)
    powers = (
        power(services, roster)
        if seen is None
        else {machine: its.power.value for machine, its in seen.items()}
    )
    return [
        _with_account(roster, row(roster, student, works.get(login), powers))
        for login, student in services.rosters.students(name).items()
    ]


def _with_account(roster: Roster, shown: Row) -> Row:
    """Show to whoever looks after a roster that a student cannot log in to their machine."""
    if not shown.not_entered or shown.failed or shown.doing:
        return shown
    todo = f"essaim students retry {roster.name} {shown.login}"
    return replace(shown, failed=shown.not_entered, todo=todo)


def row(roster: Roster, student: Student, work: Work | None, seen: Mapping[str, str] | None) -> Row:
    """One student, with what was last done to their machine."""
    stuck = work is not None and work.state is RunState.STUCK
    doing = work.note or work.workflow if work is not None and work.state.moving else ""
    failed = student.error
    if work is not None and (work.state in rosters.IN_VAIN or student.standing is Standing.COMING):
        failed = failed or work.error
    state = "stuck" if stuck else student.standing.value
    retired = student.standing is Standing.RETIRED
    return Row(
        login=student.login,
        name=student.person.name,
        group=student.person.group,
        machine=student.machine,
        address=student.address,
        state=state,
        power="" if seen is None else seen.get(student.machine, "absent"),
        since=student.since,
        until=student.since + round(roster.grace * 1000) if retired else 0,
        doing=doing,
        failed=failed,
        key=fingerprint(student.key) if student.key else "",
        key_ready=bool(student.access.digest) and student.access.key == student.key,
        entered=bool(student.access.digest) and not retired,
        not_entered=student.access.error,
        todo=_todo(roster.name, student, state, failed=bool(failed), moving=bool(doing)),
    )


def _todo(roster: str, student: Student, state: str, *, failed: bool, moving: bool) -> str:
    if moving:
        return ""
    if failed or state in ("failed", "stuck", "coming"):
        return f"essaim students retry {roster} {student.login}"
    if state == "retired":
        return "to give it back: essaim students apply, with them on the roster"
    return ""


def power(services: Services, roster: Roster) -> dict[str, str] | None:
    """Which machines of a roster run; None when its site does not answer."""
    try:
        seen = services.driver(roster.site).observe(roster.name)
    except EssaimError:
        return None
    return {str(each.name): each.power.value for each in seen}


def find(services: Services, name: str, login: str) -> Student:
    """One student of a roster; UnknownError with a near spelling."""
    found = services.rosters.one(name, login)
    if found is None:
        known = services.rosters.students(rosters.stored(services, name).name)
        hint = meant(login, known, kind="there are")
        raise UnknownError(f"no student {login} on {name}", hint=hint)
    return found


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a mass operation is."""

    total: int
    done: int
    failed: int
    waits: Sequence[tuple[str, int]]  #: what is waited for, and by how many; the most first


def progress(services: Services, run: str) -> Progress:
    """Say how far a run over a roster is, and what most of its machines wait for."""
    found = services.rosters.works.progress(run)
    waits: dict[str, int] = {}
    for note, many in found.notes.items():
        short = _SO_FAR.sub("", note)
        waits[short] = waits.get(short, 0) + many
    over = (RunState.FAILED, RunState.STUCK, RunState.ABANDONED)
    return Progress(
        total=sum(found.states.values()),
        done=found.states.get(RunState.DONE, 0),
        failed=sum(found.states.get(state, 0) for state in over),
        waits=sorted(waits.items(), key=lambda each: -each[1]),
    )
