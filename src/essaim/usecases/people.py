"""Sign up, log in, and administer people."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from essaim.model.errors import (
    ForbiddenError,
    InvalidError,
    Problem,
    TakenError,
    UnauthorisedError,
    WeakError,
)
from essaim.model.fleet import Project, Quota, Role, User
from essaim.model.passwords import guessable
from essaim.model.words import both
from essaim.store.people import Rotation
from essaim.usecases.credentials import (
    ACCESS_SECONDS,
    SESSION_SECONDS,
    digest,
    hash_password,
    new_token,
    outdated,
    read_access,
    right_password,
    sign_access,
)

if TYPE_CHECKING:
    from essaim.usecases.services import Services

NAME = re.compile(r"[a-z][a-z0-9._-]{2,31}")
PROJECT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
SHORTEST = 10
LONGEST = 1024  #: nobody types more; hashing it would only cost time
MOST_MACHINES = 1_000_000
MOST_HOURS = 1e9
FIRST = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a session is carried on with."""

    access: str
    refresh: str
    expires_in: int  #: seconds the access token lasts


@dataclass(frozen=True, slots=True)
class Session:
    """Who is asking, and in which session."""

    user: User
    sid: str


def signup(services: Services, name: str, password: str) -> User:
    """Make an account for anybody who asks: a member with the usual quota."""
    _check_name(name)
    _check_password(name, password)
    if name == FIRST:
        raise TakenError(f"the name {name} is taken", hint="choose another")
    return services.people.add(name, hash_password(password))


def login(services: Services, name: str, password: str) -> Tokens:
    """Begin a session.  Who is not known, disabled or wrong is told the same, after as long."""
    found = services.people.find(name) if NAME.fullmatch(name) else None
    user, kept = found or (None, None)
    right = right_password(kept, password[:LONGEST])
    if not right or len(password) > LONGEST or user is None or kept is None or user.disabled:
        raise UnauthorisedError("wrong name or password", hint="try again, or sign up")
    if outdated(kept):
        services.people.rehash(user.id, hash_password(password))
    token = new_token("refresh")
    sid = services.people.open_session(user.id, digest(token), SESSION_SECONDS)
    return _tokens(services, user, sid, token)


def refresh(services: Services, refresh_token: str) -> Tokens:
    """Go on with a session.  A token serves once; shown twice, the session is revoked."""
    token = new_token("refresh")
    outcome, opened = services.people.rotate(digest(refresh_token), digest(token), SESSION_SECONDS)
    if outcome is Rotation.REUSED:
        raise UnauthorisedError(
            "this refresh token was used before: its session is revoked",
            hint="log in again; change your password if it was not you",
        )
    if opened is None:
        raise UnauthorisedError("this session is over", hint="log in again")
    return _tokens(services, opened.user, opened.id, token)


def logout(services: Services, session: Session) -> None:
    """End a session at once: its tokens are worth nothing any more."""
    services.people.revoke(session.sid)


def authenticate(services: Services, access_token: str) -> Session:
    """Return who shows this token, as they are now: roles and bans count from the next request."""
    claims = read_access(services.people.signing_key, access_token)
    sid = str(claims["sid"])
    user = services.people.session_user(sid)
    if user is None or user.id != claims["sub"]:
        raise UnauthorisedError("this session is over", hint="log in again")
    return Session(user, sid)


def users(services: Services, by: User) -> list[User]:
    """List everybody, for operators and administrators."""
    if by.role is Role.MEMBER:
        raise ForbiddenError("only operators may see everybody")
    return services.people.list()


def change_user(
    services: Services,
    by: User,
    name: str,
    *,
    role: Role | None = None,
    project: str | None = None,
    machines: int | None = None,
    hours: float | None = None,
    disabled: bool | None = None,
    password: str | None = None,
) -> User:
    """Change what is not None, for administrators; everybody may change their own password.

    Whoever is disabled, or gets another password, is logged out everywhere, and what a disabled
    person waits for is given up.  The last administrator stays one.
    """
    given: dict[str, Any] = {
        "role": None if role is None else Role(role).value,
        "project": project,
        "machines": machines,
        "hours": hours,
        "disabled": disabled,
    }
    values = {key: value for key, value in given.items() if value is not None}
    if by.role is not Role.ADMIN and (values or by.name != name):
        raise ForbiddenError("only administrators may change people")
    _check_change(project, machines, hours)
    if password is not None:
        _check_password(name, password)
        values["password"] = hash_password(password)
    user = services.people.change(name, values)
    if user.disabled:
        services.leases.give_up_waiting(user.id)
    return user


def whoami(session: Session) -> User:
    """Who is asking, as they are now."""
    return session.user


def projects(services: Services, by: User) -> list[Project]:
    """List the projects that have limits of their own, for operators and administrators."""
    if by.role is Role.MEMBER:
        raise ForbiddenError("only operators may see projects")
    return services.people.projects()


def change_project(
    services: Services,
    by: User,
    name: str,
    *,
    machines: int | None = None,
    hours: float | None = None,
) -> Project:
    """Limit what the people of a project may have together, for administrators.

    What is None stays; a project that had no limits gets only those named.
    """
    if by.role is not Role.ADMIN:
        raise ForbiddenError("only administrators may change projects")
    _check_change(name, machines, hours)
    given = {"machines": machines, "hours": hours}
    values = {key: value for key, value in given.items() if value is not None}
    return services.people.put_project(name, values)


def first_admin(services: Services) -> str | None:
    """Make the user `admin` when nobody administers, and return the password, once."""
    if services.people.has_admin():
        return None
    password = secrets.token_urlsafe(15)
    quota = Quota(machines=MOST_MACHINES, hours=MOST_HOURS)
    try:
        services.people.add(FIRST, hash_password(password), role=Role.ADMIN, quota=quota)
    except TakenError:
        return None  # another process was quicker
    return password


def _tokens(services: Services, user: User, sid: str, refresh_token: str) -> Tokens:
    key = services.people.signing_key
    access = sign_access(key, user=user.id, role=user.role.value, session=sid)
    return Tokens(access=access, refresh=refresh_token, expires_in=ACCESS_SECONDS)


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidError(
            [
                Problem(
                    "a name has 3 to 32 characters: small letters, digits, dot, dash, underscore",
                    hint="it begins with a letter",
                )
            ]
        )


def _check_password(name: str, password: str) -> None:
    if not SHORTEST <= len(password) <= LONGEST:
        raise WeakError(both("password.short", shortest=SHORTEST), hint=both("password.sentence"))
    if guessable(name, password):
        raise WeakError(both("password.weak"), hint=both("password.sentence"))


def _check_change(project: str | None, machines: int | None, hours: float | None) -> None:
    problems = []
    if project and not PROJECT.fullmatch(project):
        problems.append(Problem(f"{project!r} is not a name for a project"))
    if machines is not None and not 0 <= machines <= MOST_MACHINES:
        problems.append(Problem(f"machines must be between 0 and {MOST_MACHINES}"))
    if hours is not None and not 0 <= hours <= MOST_HOURS:
        problems.append(Problem(f"hours must be between 0 and {MOST_HOURS:.12g}"))
    if problems:
        raise InvalidError(problems)
