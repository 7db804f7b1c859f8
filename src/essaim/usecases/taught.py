"""What whoever teaches a roster, or looks after all of them, asks of it as a whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from essaim.config.people import check_people
from essaim.model.errors import ForbiddenError, RejectedError, UnknownError
from essaim.model.fleet import Role
from essaim.model.words import both
from essaim.usecases import classes, rosters, students
from essaim.usecases.seats import check_teacher

if TYPE_CHECKING:
    from essaim.model.fleet import User
    from essaim.model.runs import Run
    from essaim.model.school import Person
    from essaim.usecases.services import Services


def act(
    services: Services, by: User, name: str, verb: str, logins: Collection[str] = ()
) -> Run | None:
    """Begin one of `classes.VERBS`, or `retry`, with all machines of a roster or with some.

    Returns the run that does it; None when there is nothing to do.
    """
    check_teacher(services, by, name)
    if verb == "retry":
        rosters.clear(services, name)
        return _begun(services, by, rosters.retry(services, name, logins))
    run = classes.power(services, name, verb, logins, own=False, who=by.name)
    return services.journal.get(run) if run else None


def enlist(
    services: Services, by: User, name: str, people: Sequence[Person], *, most: bool = False
) -> Run | None:
    """Say who is on a roster from now on, for operators: as `students apply` does with a file.

    RejectedError when most machines would go and `most` does not say that this is meant.
    """
    check_teacher(services, by, name)
    if by.role is Role.MEMBER:
        raise ForbiddenError(both("seat.operators"))
    roster, those = rosters.stored(services, name), check_people(people, "people")
    rosters.clear(services, name)
    planned = rosters.plan(services, roster, those)
    if planned.drastic and not most:
        raise RejectedError(both("seat.most", roster=name))
    return _begun(services, by, planned)


def work(services: Services, by: User, name: str, run: str) -> tuple[Run, students.Progress]:
    """How far a run over a roster is."""
    check_teacher(services, by, name)
    found = services.journal.get(run)
    if found is None or found.subject != name:
        raise UnknownError(both("seat.no_run", run=run, roster=name))
    return found, students.progress(services, run)


def _begun(services: Services, by: User, planned: rosters.Planned) -> Run | None:
    run = rosters.apply(services, planned, own=False, who=by.name)
    return services.journal.get(run) if run else None
