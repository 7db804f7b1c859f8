"""Rosters: see what one comes to, apply it, look at it, retry what failed, remove it."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from essaim.config.people import check_people, machine_of
from essaim.config.rosters import Roster, addresses, roster_from_json, roster_to_json
from essaim.model.errors import HeldError, InvalidError, Problem, UnknownError
from essaim.model.machines import ChecksMachines, Stocked
from essaim.model.names import MachineName
from essaim.model.plans import Change
from essaim.model.runs import NewRun, RunState, child_id
from essaim.model.spelling import meant
from essaim.model.stacks import Machine, Network, Stack
from essaim.plan import rosters as planning
from essaim.plan.rosters import Decided, Seen, Standing, Student, decide
from essaim.usecases import audit
from essaim.usecases.stacks import give_way, prune, run_over, store

if TYPE_CHECKING:
    from essaim.model.school import Desktops, Person
    from essaim.usecases.services import Services

#: The workflow of a run over a whole roster.
WORKFLOW = "roster"
#: States of work that ended without having been done.
IN_VAIN = (RunState.FAILED, RunState.STUCK)
UNFINISHED = [state for state in RunState if not state.over]
#: What makes a student's machine; the others take it away, or turn it on and off.
MAKING = ("enrol", "mend", "reset")


@runtime_checkable
class _Titles(Protocol):
    """A desktop gateway that says what there is without being asked about each."""

    def titles(self) -> Collection[tuple[str, str]]:
        """Group and name of every desktop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a roster comes to, ready to be applied."""

    roster: Roster
    people: Mapping[str, Person]  #: those the roster names, by login
    known: Mapping[str, Student]
    decided: Decided
    seen: Seen
    taken: frozenset[str] = frozenset()  #: addresses that others have, as the servers say

    @property
    def drastic(self) -> bool:
        """Whether so many would go that the roster itself may be the mistake."""
        return planning.loses_most(self.decided, self.known)


def members(services: Services, roster: Roster, group: str) -> list[Person]:
    """The people of a directory's group, checked as those of a file are."""
    directory = services.directory(roster.site)
    if directory is None:
        raise UnknownError(
            f"site {roster.site.name} names no directory",
            hint="directory: in its site file; --site SITE names another site",
        )
    return check_people(directory.members(group), group)


def plan(
    services: Services,
    roster: Roster,
    people: Sequence[Person],
    *,
    reset: bool = False,
    grace: float | None = None,
    only: Collection[str] | None = None,
) -> Planned:
    """Compare a roster with what is kept and seen; changes nothing.

    `grace` counts instead of the roster's own, this once.  `only` looks at these logins alone, and
    leaves everybody else as they are.
    """
    _refuse_strangers(services, roster)
    known = services.rosters.students(roster.name)
    listed = {person.login: person for person in people}
    if only is not None:
        known = {login: student for login, student in known.items() if login in only}
        listed = {login: person for login, person in listed.items() if login in only}
    wanted = {
        login: machine(roster, person, known[login].address if login in known else "")
        for login, person in listed.items()
    }
    seen, taken = look(services, roster)
    decided = decide(
        wanted,
        known,
        seen,
        image=roster.image.digest,
        grace=roster.grace if grace is None else grace,
        now=services.rosters.now(),
        keys={login: person.key for login, person in listed.items()},
        reset=reset,
    )
    _check_site(services, roster, decided, wanted)
    own = {student.address for student in services.rosters.students(roster.name).values()}
    return Planned(
        roster=roster,
        people=listed,
        known=known,
        decided=decided,
        seen=seen,
        taken=frozenset(taken - own),
    )


def _check_site(
    services: Services, roster: Roster, decided: Decided, wanted: Mapping[str, Machine]
) -> None:
    """See that the site has what new machines need, before each of them finds that out."""
    before = services.rosters.get(roster.name)
    same = before is not None and roster_from_json(before).image == roster.image
    made = {change.machine for verb in MAKING for change in decided.of(verb)}
    driver = services.driver(roster.site)
    if isinstance(driver, Stocked) and (made or not same):
        driver.check_image(roster.image)
    if isinstance(driver, ChecksMachines):
        new = [machine for machine in wanted.values() if str(machine.name) in made]
        driver.check_machines(roster.image, new)


def clear(services: Services, name: str) -> None:
    """Set aside what a dead or stopped earlier command left unfinished on a roster.

    Raises HeldError when the earlier one is alive.
    """
    # Looked at first: an engine takes longer to make than all the rest of an apply that changes
    # nothing.
    if services.journal.list(subject=name, states=UNFINISHED, limit=1):
        give_way(services, name)


def look(services: Services, roster: Roster) -> tuple[Seen, set[str]]:
    """See all that there is of a roster, in one listing of each server; and addresses in use."""
    site = roster.site
    machines = {str(m.name): m for m in services.driver(site).observe(roster.name)}
    names, dhcp = services.names(site), services.addresses(site)
    desktops = services.desktops(site) if roster.protocol else None
    named = dict(names.named()) if names is not None and roster.domain else None
    admitted = {host.address for host in dhcp.admitted()} if dhcp is not None else None
    published = _published(desktops) if desktops is not None else None
    seen = Seen(machines=machines, named=named, admitted=admitted, published=published)
    return seen, set((named or {}).values()) | (admitted or set())


def _published(desktops: Desktops) -> Collection[tuple[str, str]]:
    if isinstance(desktops, _Titles):
        return desktops.titles()
    return {(each.group, each.name) for each in desktops.published()}


def apply(services: Services, planned: Planned, *, own: bool = True, who: str = "") -> str:
    """Begin to carry out what a roster comes to; returns the run's id, nothing without changes.

    With `own`, this process carries it; else whoever carries runs does.  HeldError when somebody
    else is at work on the roster.
    """
    roster, decided = planned.roster, planned.decided
    if not decided.changes:
        _keep(services, planned)
        return ""
    run = secrets.token_hex(4)
    changes = _unbusy(services, planned)
    free = _free(roster, planned.taken)
    coming = _coming(planned, [change for change in changes if change.verb in MAKING], run)
    placed = services.rosters.enrol(roster.site.name, coming, free) if coming else {}
    if renewed := [change.machine for change in changes if change.verb == "reset"]:
        services.rosters.unmade(renewed)
    others = {c.machine: child_id(run, c.key) for c in changes if c.verb not in MAKING}
    services.rosters.working(others)
    stack = _stack(services, planned, placed)
    made = store(services, stack, roster.lab, changes)
    _keep(services, planned)
    prune(services)
    _set_off(services, run_over(services, made, WORKFLOW, run, who=who), own=own)
    return run


def begin(
    services: Services,
    roster: Roster,
    changes: Sequence[Change],
    everybody: Sequence[Student],
    *,
    own: bool,
    label: str = "",
    who: str = "",
) -> str:
    """Begin one run with a child for each change, for students who have their machines.

    With `own`, this process carries it; else whoever carries runs does.
    """
    run = secrets.token_hex(4)
    made = store(services, stack_of(roster, everybody), roster.lab, changes)
    parent = run_over(services, made, WORKFLOW, run, who=who, label=label)
    _set_off(services, parent, own=own)
    services.rosters.working({change.machine: child_id(run, change.key) for change in changes})
    return run


def _set_off(services: Services, parent: NewRun, *, own: bool) -> None:
    if own:  # a command on this computer: the API records what is asked of it
        audit.record_local(services, WORKFLOW, parent.subject, parent.who)
        services.engine.start([parent])
    else:
        services.journal.add([parent])
        services.courier.wake(parent.id)


def stored(services: Services, name: str) -> Roster:
    """A roster as it was last applied; UnknownError with a near spelling."""
    body = services.rosters.get(name)
    if body is None:
        names = services.rosters.names()
        hint = meant(name, names, kind="there are") or "make one: essaim students apply FILE.csv"
        raise UnknownError(f"no roster called {name}", hint=hint)
    return roster_from_json(body)


def retry(services: Services, name: str, logins: Collection[str] = ()) -> Planned:
    """See what those who failed, or were left in the middle, come to; or just those named."""
    roster = stored(services, name)
    known = services.rosters.students(name)
    check_logins(known, logins)
    works = services.rosters.works.last(name)
    in_vain = {login for login, work in works.items() if work.state in IN_VAIN}
    failed = {
        login
        for login, student in known.items()
        if (_failed(student) or login in in_vain) and (not logins or login in logins)
    }
    people = [known[login].person for login in known if login in failed]
    return plan(services, roster, people, only=failed)


def _failed(student: Student) -> bool:
    return student.standing in (Standing.FAILED, Standing.COMING) or bool(student.access.error)


def machine(roster: Roster, person: Person, address: str) -> Machine:
    """A student's machine as wanted; its labels say all that servers are told of it."""
    name = MachineName(roster.name, machine_of(person.login))
    host = f"{roster.prefix}{name.machine}"
    labels = {
        planning.LOGIN: person.login,
        planning.PERSON: person.name,
        planning.CLASS: person.group,
        planning.UID: str(person.uid or ""),
        planning.HOME: person.home,
        planning.HOST: f"{host}.{roster.domain}" if roster.domain else "",
        planning.ACCOUNT: "" if roster.account == "local" else roster.account,
        # For drivers: what people read beside the machine, and whether it asks for its address.
        "description": " - ".join(
            word for word in (person.name or person.login, person.group) if word
        ),
        "address": "dhcp" if roster.site.settings.get("dhcp") else "",
    }
    if roster.protocol:
        labels[planning.DESKTOP] = f"{roster.protocol}:{roster.port}"
        labels[planning.DESKTOP_GROUP] = roster.name
        for key, value in roster.desktop.items():
            labels[f"{planning.DESKTOP_SETTING}{key}"] = value
    return Machine(
        name=name,
        group="students",
        index=1,
        address=address,
        image=roster.image.name,
        size=roster.size,
        labels={key: value for key, value in labels.items() if value},
    )


def stack_of(roster: Roster, students: Sequence[Student]) -> Stack:
    """A roster as a stack of its students' machines."""
    return Stack(
        name=roster.name,
        site=roster.site,
        network=Network(cidr=roster.cidr),
        machines=tuple(
            machine(roster, student.person, student.address)
            for student in students
            if student.address
        ),
        images={roster.image.name: roster.image},
        roles={},
        source=roster.source,
    )


def _refuse_strangers(services: Services, roster: Roster) -> None:
    """A roster lives on one site, and shares its name with no stack of another kind."""
    body = services.rosters.get(roster.name)
    if body is None:
        if services.stacks.get_stack(roster.name) is not None:
            what = f"there is a stack called {roster.name}, and it is no roster"
            raise InvalidError([Problem(what, hint="choose another --name")])
        return
    before = roster_from_json(body)
    if before.site.name != roster.site.name or before.cidr != roster.cidr:
        what = (
            f"roster {roster.name} lives on site {before.site.name} in {before.cidr}, "
            f"not on {roster.site.name} in {roster.cidr}"
        )
        hint = f"choose another --name, or essaim students remove {roster.name} first"
        raise InvalidError([Problem(what, hint=hint)])


def _unbusy(services: Services, planned: Planned) -> list[Change]:
    """Leave out students at whose machine somebody is at work this very moment."""
    busy = services.rosters.works.busy(planned.roster.name)
    changes = [change for change in planned.decided.changes if change.machine not in busy]
    if not changes:
        raise HeldError(
            f"{planned.roster.name}: all these machines are being worked on",
            hint="wait for it: essaim students list",
        )
    return changes


def _coming(planned: Planned, changes: Sequence[Change], run: str) -> list[Student]:
    name = planned.roster.name
    people = {f"{name}/{machine_of(each.login)}": each for each in planned.people.values()}
    return [
        Student(
            roster=name,
            person=people[change.machine],
            machine=change.machine,
            run=child_id(run, change.key),
        )
        for change in changes
    ]


def free_addresses(services: Services, roster: Roster) -> Iterable[int]:
    """Every address a machine of a roster may have that no server knows somebody else by."""
    _seen, taken = look(services, roster)
    own = {student.address for student in services.rosters.students(roster.name).values()}
    return _free(roster, taken - own)


def _free(roster: Roster, taken: Collection[str]) -> Iterable[int]:
    return (number for number in addresses(roster) if _written(number) not in taken)


def _written(number: int) -> str:
    return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))


def _stack(services: Services, planned: Planned, placed: Mapping[str, Student]) -> Stack:
    """Everybody who has an address: those who come, those who stay, those who leave."""
    everybody = {**services.rosters.students(planned.roster.name), **placed}
    return stack_of(planned.roster, list(everybody.values()))


def _keep(services: Services, planned: Planned) -> None:
    roster = planned.roster
    services.rosters.put(roster.name, roster_to_json(roster))
    keys = {
        login: person.key
        for login, person in planned.people.items()
        if login in planned.known and planned.known[login].person.key != person.key
    }
    services.rosters.access.put_roster_keys(roster.name, keys)
    gone = [planned.known[login].machine for login in planned.decided.forgotten]
    if gone:
        services.rosters.forget(roster.site.name, gone)


def check_logins(known: Mapping[str, Student], logins: Collection[str]) -> None:
    """See that all these are on a roster; UnknownError with a near spelling."""
    for login in logins:
        if login not in known:
            hint = meant(login, known, kind="there are")
            raise UnknownError(f"no student {login}", hint=hint)
