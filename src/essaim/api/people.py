"""Routes for people: sign up, log in, administer."""

from typing import Annotated

from fastapi import Path

from essaim.api.asked import Change, Limits, NamePassword, NewPerson, RefreshToken
from essaim.api.asking import Address, Asking, Plane, Tries
from essaim.api.given import Project, Tokens, User
from essaim.api.pages import LINK, Paged
from essaim.api.problems import answers
from essaim.api.routes import routes
from essaim.usecases import people

router = routes("people")

Name = Annotated[
    str, Path(description="Whose account", pattern=r"^[a-z][a-z0-9._-]{2,31}$", examples=["ada"])
]
ProjectName = Annotated[
    str,
    Path(
        description="Which project", pattern=f"^({people.PROJECT.pattern})$", examples=["compilers"]
    ),
]


@router.post("/signup", status_code=201, responses=answers(409, 429))
def signup(body: NewPerson, services: Plane, tries: Tries, address: Address) -> User:
    """Make an account: a member with the usual quota."""
    tries.take({"signup address": address, "signup name": body.name})
    return User.of(people.signup(services, body.name, body.password))


@router.post("/login", responses=answers(401, 429))
def login(body: NamePassword, services: Plane, tries: Tries, address: Address) -> Tokens:
    """Begin a session."""
    tries.take({"login address": address, "login name": body.name})
    tokens = people.login(services, body.name, body.password)
    tries.give_back("login name", body.name)  # who knows the password does not guess
    return Tokens.of(tokens)


@router.post("/refresh", responses=answers(401))
def refresh(body: RefreshToken, services: Plane) -> Tokens:
    """Go on with a session.  A refresh token shown twice ends it."""
    return Tokens.of(people.refresh(services, body.refresh))


@router.post("/logout", status_code=204, responses=answers(401))
def logout(services: Plane, session: Asking) -> None:
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


@router.patch("/users/{name}", responses=answers(401, 403, 404, 409))
def change_user(name: Name, body: Change, services: Plane, session: Asking) -> User:
    """Change a person, for administrators; everybody may change their own password."""
    changes = body.model_dump(exclude_none=True)
    return User.of(people.change_user(services, session.user, name, **changes))


@router.get("/projects", responses={200: LINK, **answers(401, 403)})
def projects(services: Plane, session: Asking, page: Paged) -> list[Project]:
    """List the projects that have limits of their own by name, for operators."""
    found = page.of(people.projects(services, session.user), key=lambda project: [project.name])
    return [Project.of(project) for project in found]


@router.patch("/projects/{name}", responses=answers(401, 403))
def change_project(name: ProjectName, body: Limits, services: Plane, session: Asking) -> Project:
    """Limit what the people of a project may have together, for administrators."""
    changes = body.model_dump(exclude_none=True)
    return Project.of(people.change_project(services, session.user, name, **changes))
