"""Routes for whole rosters: who is on one, what is done with all its machines, how far that is."""

from typing import Annotated, Literal, Self

from fastapi import Path, Response
from pydantic import Field

from essaim.api.asked import Asked
from essaim.api.asking import Asking, Plane
from essaim.api.given import Given
from essaim.api.problems import answers
from essaim.api.routes import routes
from essaim.api.students import RosterName
from essaim.model.runs import Run, RunState
from essaim.model.school import Person
from essaim.usecases import taught
from essaim.usecases.students import Progress

router = routes("students")

RunId = Annotated[
    str, Path(description="Which run", pattern=r"^[0-9a-f]{8}$", examples=["0f3a9c81"])
]
Word = Annotated[str, Field(max_length=200)]
MOST = 5000  #: people on one roster


class Somebody(Asked):
    """Somebody who is to have a machine."""

    login: Annotated[str, Field(min_length=1, max_length=32)] = Field(
        examples=["alice"], description="Unique on the roster"
    )
    name: Word = Field("", description="Full name")
    mail: Word = Field("", description="Where to write to")
    group: Word = Field(default="", description="Their class")
    uid: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        0, description="On the machine; 0: chosen there"
    )
    home: Word = Field("", description="Home directory; empty: the usual one")
    key: Annotated[str, Field(max_length=8192)] = Field(default="", description="SSH public key")

    def person(self) -> Person:
        """The same as the rest of us knows it."""
        return Person(**self.model_dump())


class People(Asked):
    """Everybody who is on a roster; who is not named leaves it."""

    people: Annotated[list[Somebody], Field(max_length=MOST, description="All of them")]
    most: bool = Field(default=False, description="It is meant that most machines go")


class Some(Asked):
    """Whose machines are meant."""

    logins: Annotated[list[Annotated[str, Field(max_length=32)]], Field(max_length=MOST)] = Field(
        default=[], description="Everybody's when empty"
    )


class Wait(Given):
    """What machines wait for."""

    what: str = Field(examples=["a clone slot on storage vol-ceph-1"], description="In words")
    machines: int = Field(description="How many wait for it")


class Work(Given):
    """Something that is done with many machines."""

    run: str = Field(description="Empty when there is nothing to do", examples=["0f3a9c81"])
    state: RunState = Field(description="How far it is")
    total: int = Field(description="Machines; 0 until the work has begun")
    done: int = Field(description="Machines that are finished")
    failed: int = Field(description="Machines that failed")
    waits: list[Wait] = Field(description="What most wait for comes first")

    @classmethod
    def of(cls, run: Run | None, progress: Progress | None = None) -> Self:
        """Show a run over a roster."""
        seen = progress or Progress(total=0, done=0, failed=0, waits=())
        return cls(
            run=run.id if run else "",
            state=run.state if run else RunState.DONE,
            total=seen.total,
            done=seen.done,
            failed=seen.failed,
            waits=[Wait(what=what, machines=machines) for what, machines in seen.waits],
        )


@router.put(
    "/rosters/{roster}/people",
    status_code=202,
    responses={200: {"model": Work}, **answers(401, 403, 404, 409)},
)
def enlist(
    roster: RosterName, body: People, services: Plane, session: Asking, response: Response
) -> Work:
    """Say who is on a roster: who is new gets a machine, who is not named loses theirs after grace.

    For operators.  What the machines are like stays as it was last applied.  200 when there is
    nothing to do.
    """
    them = [each.person() for each in body.people]
    run = taught.enlist(services, session.user, roster, them, most=body.most)
    return _answer(run, response)


@router.post(
    "/rosters/{roster}/{verb}",
    status_code=202,
    responses={200: {"model": Work}, **answers(401, 404, 409)},
)
def act_on_all(
    *,
    roster: RosterName,
    verb: Annotated[
        Literal["start", "stop", "reset", "retire", "retry"], Path(description="What to do")
    ],
    services: Plane,
    session: Asking,
    response: Response,
    body: Some | None = None,
) -> Work:
    """Begin something with all machines of a roster, or with those of some students.

    For its teachers and for operators.  `reset` makes machines anew: what is on their disks is
    lost.  `retry` makes those that failed.  200 when nothing is to do.
    """
    run = taught.act(services, session.user, roster, verb, body.logins if body else ())
    return _answer(run, response)


@router.get("/rosters/{roster}/runs/{run}", responses=answers(401, 404))
def work(roster: RosterName, run: RunId, services: Plane, session: Asking) -> Work:
    """Say how far something is that was begun with a whole roster, and what is waited for."""
    return Work.of(*taught.work(services, session.user, roster, run))


def _answer(run: Run | None, response: Response) -> Work:
    if run is None:
        response.status_code = 200
    return Work.of(run)
