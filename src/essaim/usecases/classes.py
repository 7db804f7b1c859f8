"""A whole class: who teaches it, who may claim a machine, when machines are started."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Any

from essaim.config.rosters import roster_from_json, settings_of
from essaim.model.errors import EssaimError, RejectedError, UnknownError
from essaim.model.names import MachineName
from essaim.model.plans import Action, Change
from essaim.plan.rosters import Standing, Student
from essaim.plan.timetable import read_times
from essaim.store.classes import Lesson
from essaim.usecases import rosters
from essaim.usecases.credentials import digest, new_token

if TYPE_CHECKING:
    from essaim.usecases.services import Services

#: Verbs for a whole roster, and the workflow that does it to each machine.
VERBS = {
    "start": "wake",
    "stop": "halt",
    "reset": "reset",
    "retire": "withdraw",
    "remove": "remove",
    "snapshot": "keep",
    "restore": "revert",
}
#: Kinds of processes that carry out schedules.
CLOCKS = frozenset({"controller", "serve"})
#: Milliseconds after which what was missed is not made up for: the class is over.
LATE = 30 * 60 * 1000


def earlier_settings(services: Services, name: str) -> dict[str, Any]:
    """Site, image and size of a roster as it was last applied; nothing when it is new."""
    body = services.rosters.get(name)
    return {} if body is None else settings_of(roster_from_json(body))


def power(
    services: Services,
    name: str,
    verb: str,
    logins: Collection[str] = (),
    *,
    own: bool = True,
    label: str = "",
    who: str = "",
) -> str:
    """Begin to start or stop the machines of a roster, or to do one of `VERBS` to some of them.

    Returns the run, nothing when nobody has a machine.  With `own`, this process carries it.
    """
    roster = rosters.stored(services, name)
    known = services.rosters.students(name)
    rosters.check_logins(known, logins)
    chosen = [each for login, each in known.items() if not logins or login in logins]
    busy = services.rosters.works.busy(name)
    theirs = [each for each in chosen if each.address and _fits(each, verb)]
    theirs = [each for each in theirs if each.machine not in busy]
    if not theirs:
        return ""
    changes = [
        Change(
            key=MachineName.parse(each.machine).machine,
            action=Action.CHANGE,
            verb=VERBS[verb],
            machine=each.machine,
        )
        for each in theirs
    ]
    if verb == "reset":
        services.rosters.unmade([each.machine for each in theirs])
    everybody = list(known.values())
    return rosters.begin(services, roster, changes, everybody, own=own, label=label, who=who)


def _fits(student: Student, verb: str) -> bool:
    if verb == "remove":
        return True
    return student.standing in (Standing.READY, Standing.COMING, Standing.FAILED)


def expire(services: Services) -> list[str]:
    """Begin to destroy machines whose grace is over; returns the runs."""
    due: dict[str, list[str]] = {}
    now = services.rosters.now()
    for student in services.rosters.standing(Standing.RETIRED):
        roster = services.rosters.get(student.roster)
        if roster is not None and now - student.since >= roster["grace"] * 1000:
            due.setdefault(student.roster, []).append(student.login)
    return [run for name, logins in due.items() if (run := _tried(services, name, logins))]


def _tried(services: Services, name: str, logins: Collection[str]) -> str:
    try:
        return power(services, name, "remove", logins, own=False)
    except EssaimError:
        return ""  # somebody is at work on the roster: the next look finds them again


def invite(
    services: Services, name: str, logins: Collection[str] = ()
) -> list[tuple[Student, str]]:
    """Make codes with which students claim their machines; shown this once.

    Without logins, for everybody who has not claimed theirs; a code given before is worth nothing
    then.
    """
    rosters.stored(services, name)
    known = services.rosters.students(name)
    rosters.check_logins(known, logins)
    chosen = [
        each for login, each in known.items() if (login in logins if logins else not each.account)
    ]
    codes = {each.login: new_token("seat") for each in chosen}
    services.classes.invite(name, {login: digest(code) for login, code in codes.items()})
    return [(each, codes[each.login]) for each in chosen]


def teachers(services: Services, name: str) -> list[str]:
    """List the names of those who teach a roster."""
    rosters.stored(services, name)
    found = (services.people.get(account) for account in services.classes.teachers(name))
    return sorted(user.name for user in found if user is not None)


def set_teacher(services: Services, name: str, who: str, *, teaches: bool = True) -> None:
    """Let an account, given by id or name, act on all machines of a roster, or no more."""
    rosters.stored(services, name)
    found = services.people.resolve(who)
    if found is None:
        raise UnknownError(
            f"nobody is called {who}",
            hint=f"a code makes somebody without an account a teacher: "
            f"essaim users invite --teaches {name}",
        )
    change = services.classes.add_teacher if teaches else services.classes.drop_teacher
    change(name, found.id)


def schedule(services: Services, name: str, verb: str, times: str) -> Lesson:
    """Have the machines of a roster started or stopped by the clock from now on."""
    rosters.stored(services, name)
    lesson = Lesson(name, verb, times, _next(times))
    services.classes.put_lesson(lesson)
    return lesson


def unschedule(services: Services, name: str) -> None:
    """Leave the machines of a roster to people."""
    rosters.stored(services, name)
    services.classes.drop_lessons(name)


def clock_runs(services: Services) -> bool:
    """Whether a process lives that carries out what is scheduled."""
    return any(process.kind in CLOCKS for process in services.workers.alive())


def ring(services: Services) -> list[str]:
    """Begin what is due by the clock; returns the runs.  Of many who call it, one begins each."""
    begun = []
    for lesson in services.classes.due():
        late = services.rosters.now() - lesson.next_at > LATE
        if not services.classes.move_lesson(lesson, _next(lesson.times)) or late:
            continue
        run = power(services, lesson.roster, lesson.verb, own=False)
        if run:
            begun.append(run)
    return begun


def _next(times: str) -> int:
    now = datetime.fromtimestamp(time.time())  # noqa: DTZ006 - classes begin in local time
    return round(read_times(times).next_after(now).timestamp() * 1000)


def remove(services: Services, name: str) -> str:
    """Begin to take a whole roster away, whatever its grace; returns the run.

    Nothing when there is no machine left: then the roster is forgotten at once.
    """
    roster = rosters.stored(services, name)
    known = services.rosters.students(name)
    if any(each.address for each in known.values()):
        run = power(services, name, "remove")
        if not run:
            raise RejectedError(f"{name}: its machines are being worked on", hint="wait for it")
        return run
    services.rosters.forget(roster.site.name, [each.machine for each in known.values()])
    services.rosters.drop(name)
    services.stacks.drop_stack(name)
    return ""
