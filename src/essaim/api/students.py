"""Routes for students' machines: one's own, a class's, anybody's."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Literal, Self

from fastapi import Depends, Header, Path
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from essaim.api.asked import KEY, Asked, Current, PublicKey, Secret
from essaim.api.asking import Asking, ClientNetwork, InPerson, Plane, Prove, Told, Tries
from essaim.api.given import Access, Given, access_of, when
from essaim.api.options import Gateway
from essaim.api.pages import LINK, Paged
from essaim.api.problems import answers
from essaim.api.routes import routes
from essaim.model import machines
from essaim.model.words import language, words
from essaim.usecases import people, seats
from essaim.usecases.students import Row

router = routes("students")

RosterName = Annotated[
    str, Path(description="Which roster", pattern=r"^[a-z][a-z0-9-]{0,39}$", examples=["promo"])
]
Login = Annotated[
    str,
    Path(description="Which student", pattern=r"^[a-z0-9][a-z0-9._-]{0,31}$", examples=["alice"]),
]
Label = Annotated[
    str,
    Path(
        description="Which snapshot", pattern=f"^({seats.LABEL.pattern})$", examples=["before-exam"]
    ),
]
Tongue = Annotated[
    str, Header(alias="Accept-Language", max_length=1024, description="English or French")
]


class Code(Asked):
    """What a student was given to claim their machine."""

    code: Secret = Field(examples=["seat_8fQ…"], description="As the teacher gave it")


class Student(Given):
    """A student's machine."""

    roster: str = Field(examples=["promo"], description="Of which class list")
    login: str = Field(examples=["alice"], description="On the roster")
    name: str = Field(description="Full name")
    group: str = Field(description="Their class")
    machine: str = Field(examples=["promo/alice"], description="ROSTER/LOGIN")
    address: str = Field(examples=["10.60.0.10"], description="Empty until it has one")
    state: str = Field(description="coming, ready, failed, stuck, retired or without")
    said: str = Field(description="The same in the language of Accept-Language")
    power: str = Field(description="on, off or absent; empty when the site did not say")
    since: datetime | None = Field(description="When it got into this state")
    until: datetime | None = Field(description="When a retired machine is destroyed")
    doing: str = Field(description="What is done with it right now, or waited for")
    failed: str = Field(description="Why, in words")
    key: str = Field(description="Fingerprint of the SSH key that opens it; empty: none is known")
    key_ready: bool = Field(description="Whether the machine has that key by now")
    access: Access | None = Field(description="How to log in, once there is an account on it")
    no_access: str = Field(description="Why the account or the key could not be put there")

    @classmethod
    def of(cls, row: Row, tongue: str, gateway: Gateway) -> Self:
        """Show a student's machine."""
        roster = row.machine.partition("/")[0]
        return cls(
            roster=roster,
            login=row.login,
            name=row.name,
            group=row.group,
            machine=row.machine,
            address=row.address,
            state=row.state,
            said=said(row, language(tongue)),
            power=row.power,
            since=when(row.since),
            until=when(row.until),
            doing=row.doing,
            failed=row.failed,
            key=row.key,
            key_ready=row.key_ready,
            access=access_of(f"{roster}.{row.login}", gateway) if row.entered else None,
            no_access=row.not_entered,
        )


class Key(Asked):
    """The SSH key a student logs in with."""

    public_key: PublicKey = Field(examples=[KEY], description="One line of ~/.ssh/*.pub")
    current: Current = None


class Snapshot(Given):
    """The state of a machine's disk at some moment."""

    label: str = Field(examples=["before-exam"], description="What it is called")
    made_at: datetime | None = Field(description="When it was taken")

    @classmethod
    def of(cls, snapshot: machines.Snapshot) -> Self:
        """Show a snapshot."""
        return cls(label=snapshot.label, made_at=when(round(snapshot.made_at * 1000)))


def said(row: Row, tongue: str) -> str:
    """How it stands with a machine, as a student reads it."""
    if row.state == "retired":
        until = when(row.until)
        return words("seat.retired_state", tongue, until=until.date() if until else "")
    state = words(f"seat.{row.state}", tongue)
    return f"{state}, {words(f'seat.{row.power}', tongue)}" if row.power else state


async def the_shower(options: Told, tongue: Tongue = "") -> Callable[[Row], Student]:
    """What shows a machine in the caller's language."""
    return lambda row: Student.of(row, tongue, options.gateway)


Shown = Annotated[Callable[[Row], Student], Depends(the_shower)]


@router.get("/students", responses=answers(401))
def my_machines(services: Plane, session: Asking, shown: Shown) -> list[Student]:
    """List one's own machines, on any roster."""
    return [shown(row) for row in seats.mine(services, session.user)]


@router.post("/students/claim", responses=answers(401, 403, 404, 429))
def claim(
    *,
    body: Code,
    services: Plane,
    session: Asking,
    tries: Tries,
    network: ClientNetwork,
    shown: Shown,
) -> Student:
    """Take possession of one's machine with the code one was given, once."""
    tries.take({"claim address": network})
    return shown(seats.claim(services, session.user, body.code))


@router.get("/rosters", responses=answers(401))
def my_rosters(services: Plane, session: Asking) -> list[str]:
    """List the rosters one teaches; operators see all."""
    return seats.taught(services, session.user)


@router.get("/rosters/{roster}", responses={200: LINK, **answers(401, 404)})
def one_roster(
    roster: RosterName, services: Plane, session: Asking, page: Paged, shown: Shown
) -> list[Student]:
    """List the students of a roster, for its teachers and for operators."""
    found = page.of(seats.roster_rows(services, session.user, roster), key=lambda row: [row.login])
    return [shown(row) for row in found]


@router.get("/students/{roster}/{login}", responses=answers(401, 404))
def one_student(
    roster: RosterName, login: Login, services: Plane, session: Asking, shown: Shown
) -> Student:
    """Show one machine: one's own, or a pupil's."""
    return shown(seats.show(services, session.user, roster, login))


@router.put(
    "/students/{roster}/{login}/key", status_code=202, responses=answers(401, 403, 404, 422, 429)
)
async def put_key(
    *,
    roster: RosterName,
    login: Login,
    body: Key,
    services: Plane,
    session: InPerson,
    shown: Shown,
    prove: Prove,
) -> Student:
    """Say which SSH key opens one's machine; the one before opens it no more.

    For the student and for operators.  `key_ready` says when the machine has it: one that is off
    takes it when it starts.  Ten minutes after a login it needs the caller's password.
    """
    async with prove(session, body.current):
        await run_in_threadpool(people.confirm, services, session, body.current)
    owner = (services, session.user, roster, login)
    return shown(await run_in_threadpool(seats.put_key, *owner, body.public_key))


@router.post(
    "/students/{roster}/{login}/{verb}", status_code=202, responses=answers(401, 403, 404, 409)
)
def act(
    *,
    roster: RosterName,
    login: Login,
    verb: Annotated[
        Literal["create", "start", "stop", "reset", "retire"], Path(description="What to do")
    ],
    services: Plane,
    session: Asking,
    shown: Shown,
) -> Student:
    """Begin something with one's own machine, or a pupil's; `doing` says how it goes.

    `reset` makes it anew: what is on its disk is lost.  `retire` is for teachers.
    """
    row = seats.act(services, session.user, roster, login, verb)
    return shown(row)


@router.delete("/students/{roster}/{login}", status_code=202, responses=answers(401, 403, 404, 409))
def delete(
    roster: RosterName, login: Login, services: Plane, session: Asking, shown: Shown
) -> Student:
    """Give a machine back: it is destroyed, and may be created again while one is on the roster."""
    return shown(seats.act(services, session.user, roster, login, "delete"))


@router.get("/students/{roster}/{login}/snapshots", responses=answers(401, 404, 409))
def snapshots(roster: RosterName, login: Login, services: Plane, session: Asking) -> list[Snapshot]:
    """List what was kept of a machine, oldest first."""
    found = seats.snapshots(services, session.user, roster, login)
    return [Snapshot.of(each) for each in found]


async def with_snapshot(
    *,
    roster: RosterName,
    login: Login,
    label: Label,
    services: Plane,
    session: Asking,
    shown: Shown,
) -> Callable[[str], Student]:
    """What does something with a snapshot, and shows its machine."""

    def do(verb: str) -> Student:
        row = seats.act(services, session.user, roster, login, verb, label=label)
        return shown(row)

    return do


WithSnapshot = Annotated[Callable[[str], Student], Depends(with_snapshot)]


@router.put(
    "/students/{roster}/{login}/snapshots/{label}",
    status_code=202,
    responses=answers(401, 403, 404, 409),
)
def keep(do: WithSnapshot) -> Student:
    """Keep the disk as it is now."""
    return do("snapshot")


@router.post(
    "/students/{roster}/{login}/snapshots/{label}/restore",
    status_code=202,
    responses=answers(401, 403, 404, 409),
)
def restore(do: WithSnapshot) -> Student:
    """Go back to a snapshot: what was written since is lost; the machine is started."""
    return do("restore")


@router.delete(
    "/students/{roster}/{login}/snapshots/{label}",
    status_code=202,
    responses=answers(401, 403, 404, 409),
)
def forget(do: WithSnapshot) -> Student:
    """Forget a snapshot."""
    return do("forget")
