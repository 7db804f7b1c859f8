"""Routes for people: sign up, log in, administer."""

import functools
from typing import Annotated

from fastapi import Path, Request
from starlette.concurrency import run_in_threadpool

from essaim.api.asked import Change, Limits, NamePassword, NewPerson, RefreshToken
from essaim.api.asking import (
    Administering,
    Asking,
    ClientNetwork,
    Gate,
    InPerson,
    Origin,
    Plane,
    Prove,
    Tries,
)
from essaim.api.given import Project, Tokens, User
from essaim.api.pages import LINK, Paged
from essaim.api.problems import answers
from essaim.api.routes import routes
from essaim.usecases import people

router = routes("people")

Name = Annotated[
    str,
    Path(
        description="Whose account: name or id",
        pattern=r"^[a-z][a-z0-9._-]{2,31}$",
        examples=["ada"],
    ),
]
ProjectName = Annotated[
    str,
    Path(
        description="Which project", pattern=f"^({people.PROJECT.pattern})$", examples=["compilers"]
    ),
]


@router.post("/signup", status_code=201, responses=answers(403, 409, 429))
async def signup(
    *,
    body: NewPerson,
    services: Plane,
    tries: Tries,
    network: ClientNetwork,
    gate: Gate,
    request: Request,
) -> User:
    """Make an account: a member with the usual quota.

    What it takes, the server's administrator has chosen: an `invite` code, approval (`pending`
    then says that it is awaited), nothing, or it is closed.
    """
    refused = {"signup refused": network}
    keys = {"signup address": network, "signup name": f"{body.name} {network}", **refused}
    await run_in_threadpool(tries.take, keys)
    request.state.object = request.state.name = body.name
    asked = (services, body.name, body.password, body.invite)
    async with gate.turn(network):
        user = await run_in_threadpool(people.signup, *asked)
    await run_in_threadpool(tries.give_back, refused)
    return User.of(user)


@router.post("/login", responses=answers(401, 403, 429))
async def login(
    *,
    body: NamePassword,
    services: Plane,
    tries: Tries,
    network: ClientNetwork,
    gate: Gate,
    request: Request,
    origin: Origin,
) -> Tokens:
    """Begin a session.

    Who guesses is refused for a while, by the name and network they guess from; nobody else is.
    """
    keys = {"login address": network, "login name": f"{body.name} {network}"}
    await run_in_threadpool(tries.take, keys)
    request.state.object = request.state.name = body.name
    async with gate.turn(network):
        begin = functools.partial(people.login, services, body.name, body.password, seen=origin)
        tokens = await run_in_threadpool(begin)
    await run_in_threadpool(tries.give_back, keys)  # who knows the password does not guess
    return Tokens.of(tokens)


@router.post("/refresh", responses=answers(401))
def refresh(body: RefreshToken, services: Plane, origin: Origin) -> Tokens:
    """Go on with a session.  A refresh token shown twice ends it."""
    return Tokens.of(people.refresh(services, body.refresh, seen=origin))


@router.post("/logout", status_code=204, responses=answers(401, 403))
def logout(services: Plane, session: InPerson) -> None:
    """End the session at once."""
    people.logout(services, session)


@router.get("/me", responses=answers(401))
def me(session: Asking) -> User:
    """Show who is asking, and what they may have."""
    return User.of(people.whoami(session))


@router.get("/users", responses={200: LINK, **answers(401, 403)})
def users(services: Plane, session: Asking, page: Paged) -> list[User]:
    """List people by name, for operators."""
    found = page.of(people.users(services, session.user), key=lambda user: [user.name])
    return [User.of(user) for user in found]


@router.patch("/users/{name}", responses=answers(401, 403, 404, 409, 429))
async def change_user(
    name: Name, body: Change, services: Plane, session: Asking, prove: Prove
) -> User:
    """Change a person, for administrators; everybody may change their own password.

    Ten minutes after a login it needs the caller's password: `reauthenticate`.
    """
    changes = body.model_dump(exclude_none=True)
    change = functools.partial(people.change_in_person, services, session, name, **changes)
    async with prove(session, body.current or body.password):
        return User.of(await run_in_threadpool(change))


@router.post("/users/{name}/approve", responses=answers(401, 403, 404, 409))
def approve_user(name: Name, services: Plane, session: Administering) -> User:
    """Let somebody log in whose account waited for approval, for administrators."""
    return User.of(people.approve(services, session.user, name))


@router.get("/projects", responses={200: LINK, **answers(401, 403)})
def projects(services: Plane, session: Asking, page: Paged) -> list[Project]:
    """List the projects that have limits of their own by name, for operators."""
    found = page.of(people.projects(services, session.user), key=lambda project: [project.name])
    return [Project.of(project) for project in found]


@router.patch("/projects/{name}", responses=answers(401, 403, 429))
async def change_project(
    name: ProjectName, body: Limits, services: Plane, session: Asking, prove: Prove
) -> Project:
    """Limit what the people of a project may have together, for administrators."""
    changes = body.model_dump(exclude_none=True, exclude={"current"})
    async with prove(session, body.current):
        await run_in_threadpool(people.confirm, services, session, body.current)
    change = functools.partial(people.change_project, services, session.user, name, **changes)
    return Project.of(await run_in_threadpool(change))
