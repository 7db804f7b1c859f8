"""What a roster, what is kept of its students and what is seen of their machines mean together."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from essaim.model.machines import Observed, Power
from essaim.model.plans import Action, Change
from essaim.model.school import Desktop, Host, Person
from essaim.model.stacks import Machine

#: A roster that would lose more than this share of its machines at once is looked at twice.
MOST = 0.5
#: Below so many nobody is surprised.
FEW = 3

#: Labels of a student's machine: all that the servers of its network are told of it.
LOGIN, PERSON, CLASS, UID, HOME = "login", "person", "class", "uid", "home"
HOST, DESKTOP, DESKTOP_GROUP = "host", "desktop", "desktop-group"
DESKTOP_SETTING = "desktop."
#: Where the account comes from (`config.rosters.ACCOUNTS`); absent: it is made on the machine.
ACCOUNT = "account"


class Standing(enum.StrEnum):
    """How it stands with a student's machine."""

    COMING = "coming"  #: being made, or begun and not finished
    READY = "ready"
    FAILED = "failed"  #: could not be made; what was begun is undone
    RETIRED = "retired"  #: off and withdrawn; destroyed when its grace is over
    WITHOUT = "without"  #: the student gave it back


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What was last put on a student's machine for them to log in with."""

    digest: str = ""  #: of the account and its keys; nothing when none was ever put there
    key: str = ""  #: the student's, as it was put there
    host_key: str = ""  #: the only one the machine is believed by
    error: str = ""  #: why the last attempt failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Student:
    """Somebody of a roster, as the store has them.  Times are milliseconds of its clock."""

    roster: str
    person: Person
    machine: str  #: STACK/MACHINE
    address: str = ""
    standing: Standing = Standing.COMING
    since: int = 0
    made: int = 0  #: when it was first ready: from then on there is something to lose
    halted: int = 0  #: when somebody stopped it through Essaim; 0: it is wanted on
    error: str = ""  #: why it failed, in words
    run: str = ""  #: what last worked on it
    account: str = ""  #: the id of the account that is theirs; nothing until they claimed it
    own_key: str = ""  #: SSH public key they sent; counts more than the roster's
    access: Access = Access()

    @property
    def key(self) -> str:
        """The SSH public key they log in with; nothing when none is known."""
        return self.own_key or self.person.key

    @property
    def login(self) -> str:
        """What the school calls them."""
        return self.person.login


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that is seen of a roster's machines.  None: the site has no such server."""

    machines: Mapping[str, Observed]  #: by STACK/MACHINE
    named: Mapping[str, str] | None = None  #: name → address
    admitted: Collection[str] | None = None  #: addresses
    published: Collection[tuple[str, str]] | None = None  #: group and name of desktops


@dataclass(frozen=True, slots=True)
class Decided:
    """What is to be done, and what is left alone."""

    changes: tuple[Change, ...] = ()
    kept: int = 0
    resting: tuple[str, ...] = ()  #: retired, and their grace is not over
    without: tuple[str, ...] = ()  #: gave theirs back
    outdated: tuple[str, ...] = ()  #: kept, though made from another image
    forgotten: tuple[str, ...] = ()  #: gone from the roster, and nothing is left of them

    def of(self, verb: str) -> list[Change]:
        """List the changes that one workflow carries out."""
        return [change for change in self.changes if change.verb == verb]


@dataclass(slots=True)
class _Made:
    keys: Mapping[str, str]  #: that the roster names, by login
    changes: list[Change] = field(default_factory=list)
    kept: int = 0
    resting: list[str] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)


def decide(
    wanted: Mapping[str, Machine],
    known: Mapping[str, Student],
    seen: Seen,
    *,
    image: str,
    grace: float,
    now: int,
    keys: Mapping[str, str] | None = None,
    reset: bool = False,
) -> Decided:
    """Say what a roster comes to: all mappings are by login, `image` is a digest.

    With `reset`, machines made from another image are made anew; otherwise they are kept.
    """
    made = _Made(keys=keys or {})
    for login, machine in wanted.items():
        _listed(made, machine, known.get(login), seen, image, reset=reset)
    for login, student in known.items():
        if login not in wanted:
            _gone(made, student, seen, grace, now)
    return Decided(
        tuple(made.changes),
        made.kept,
        tuple(made.resting),
        tuple(made.without),
        tuple(made.outdated),
        tuple(made.forgotten),
    )


def _listed(
    made: _Made, machine: Machine, student: Student | None, seen: Seen, image: str, *, reset: bool
) -> None:
    login = machine.labels[LOGIN]
    if student is not None and student.standing is Standing.WITHOUT:
        made.without.append(login)
        return
    there = seen.machines.get(str(machine.name))
    reason = _reason(machine, student, there, seen)
    if reason:
        # What a student has worked on is never undone because a server did not answer.
        kept = there is not None and student is not None and student.made
        verb, action = ("mend", Action.CHANGE) if kept else ("enrol", Action.ADD)
        made.changes.append(_change(machine, action, verb, reason))
        return
    if there is not None and there.image not in ("", image):
        if reset:
            reason = "made from another image"
            made.changes.append(_change(machine, Action.CHANGE, "reset", reason))
            return
        made.outdated.append(login)
    if there is not None and student is not None and (reason := _wakes(made, student, there)):
        made.changes.append(_change(machine, Action.CHANGE, "wake", reason))
        return
    made.kept += 1


def _wakes(made: _Made, student: Student, there: Observed) -> str:
    """Why a machine that is there is to be started, or its account renewed, which `wake` does."""
    if is_off(student, there):
        return "wanted on, is off"
    if student.halted or there.power is Power.OFF:
        return ""
    if student.access.error:
        return "no account on it"
    same = student.person.key == made.keys.get(student.login, "")
    return "" if student.own_key or same else "another key"


def is_off(student: Student, there: Observed) -> bool:
    """Whether a machine is off that nobody stopped through Essaim.

    Nothing can be done about one whose node does not answer: to wait for it would hold up
    everybody else.
    """
    return there.power is Power.OFF and not student.halted and "note" not in there.detail


def _reason(machine: Machine, student: Student | None, there: Observed | None, seen: Seen) -> str:
    """Why a student of the roster is to be enrolled; nothing when all is as it should be."""
    if student is None:
        return "new"
    if student.standing is Standing.RETIRED:
        return "back on the roster"
    if student.standing is Standing.FAILED:
        return "failed before"
    if there is None:
        return "not there"
    if student.standing is Standing.COMING:
        return "begun and not finished"
    return lacking(machine, seen)


def lacking(machine: Machine, seen: Seen) -> str:
    """What the servers of its network do not know of a machine; nothing when they do."""
    host = host_of(machine)
    if seen.admitted is not None and host.address not in seen.admitted:
        return "not in DHCP"
    if seen.named is not None and host.name and seen.named.get(host.name) != host.address:
        return "no name in DNS"
    desktop = desktop_of(machine)
    if desktop and seen.published is not None:
        return "" if (desktop.group, desktop.name) in seen.published else "no desktop"
    return ""


def _gone(made: _Made, student: Student, seen: Seen, grace: float, now: int) -> None:
    there = student.machine in seen.machines
    nothing = student.standing is Standing.FAILED and not there
    if student.standing is Standing.RETIRED:
        if now - student.since < grace * 1000:
            made.resting.append(student.login)
            return
        made.changes.append(_leaving(student, "remove", "its grace is over"))
    elif student.standing is Standing.WITHOUT or nothing:
        made.forgotten.append(student.login)
    elif grace <= 0:
        made.changes.append(_leaving(student, "remove", "gone from the roster"))
    else:
        made.changes.append(_leaving(student, "withdraw", "gone from the roster"))


def _change(machine: Machine, action: Action, verb: str, reason: str) -> Change:
    name = machine.name
    return Change(key=name.machine, action=action, verb=verb, machine=str(name), reason=reason)


def _leaving(student: Student, verb: str, reason: str) -> Change:
    key = student.machine.partition("/")[2]
    return Change(key=key, action=Action.REMOVE, verb=verb, machine=student.machine, reason=reason)


def loses_most(decided: Decided, known: Mapping[str, Student]) -> bool:
    """Whether so many machines would go that the roster itself may be the mistake."""
    going = len(decided.of("withdraw")) + len(decided.of("remove"))
    have = sum(each.standing in (Standing.READY, Standing.COMING) for each in known.values())
    return going > FEW and going > have * MOST


def host_of(machine: Machine, card: str = "") -> Host:
    """A student's machine as DNS and DHCP know it."""
    return Host(name=machine.labels.get(HOST, ""), address=machine.address, mac=card)


def desktop_of(machine: Machine) -> Desktop | None:
    """The way into a student's machine from a browser; None when it has none."""
    labels = machine.labels
    protocol, _, port = labels.get(DESKTOP, "").partition(":")
    if not protocol:
        return None
    return Desktop(
        name=labels.get(HOST, "").partition(".")[0] or machine.name.machine,
        protocol=protocol,
        address=machine.address,
        port=int(port),
        group=labels.get(DESKTOP_GROUP, ""),
        people=(labels[LOGIN],),
        settings={
            key.removeprefix(DESKTOP_SETTING): value
            for key, value in labels.items()
            if key.startswith(DESKTOP_SETTING)
        },
    )


def first_few(names: Sequence[str], few: int = 5) -> str:
    """Some of many names, and how many more there are."""
    shown = ", ".join(names[:few])
    return shown if len(names) <= few else f"{shown} and {len(names) - few} more"


def tally(students: Iterable[Student]) -> dict[Standing, int]:
    """Count students by how it stands with them."""
    counts = dict.fromkeys(Standing, 0)
    for student in students:
        counts[student.standing] += 1
    return counts
