"""Sign up, log in, and administer people."""

from __future__ import annotations

import dataclasses
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from essaim.model.errors import (
    ForbiddenError,
    InvalidError,
    Problem,
    ReauthenticateError,
    RejectedError,
    TakenError,
    UnauthorisedError,
    UnknownError,
    WeakError,
)
from essaim.model.fleet import Permission, Project, Quota, Role, Scope, Seen, User
from essaim.model.invites import SignupMode
from essaim.model.passwords import guessable
from essaim.model.words import both
from essaim.store.people import ID, NOWHERE, Rotation, hidden, kept_as
from essaim.usecases import seats
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
from essaim.usecases.leases import end_disabled
from essaim.usecases.signing_keys import ACCESS

if TYPE_CHECKING:
    from essaim.usecases.services import Services

NAME = re.compile(r"[a-z][a-z0-9._-]{2,31}")
PROJECT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
SHORTEST = 10
LONGEST = 1024  #: nobody types more; hashing it would only cost time
MOST_MACHINES = 1_000_000
MOST_HOURS = 1e9
FIRST = "admin"
PROGRAM = "essaim"  #: how the tokens of programs begin
BESIDE = "."  #: between a refresh token and the id of its session


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
    sid: str = ""  #: as it is kept; nothing for a program
    fresh: bool = False  #: they logged in a moment ago
    scope: Scope | None = None  #: what a program may that asks for them


def signup(services: Services, name: str, password: str, invite: str = "") -> User:
    """Make an account as the sign-up mode allows: a member with the usual quota.

    A valid code is asked for first, before anything is said of names or spent on hashing.
    """
    mode = services.signup_mode
    if mode is SignupMode.CLOSED:
        raise ForbiddenError(both("signup.closed"), hint=both("signup.closed_hint"))
    if mode is SignupMode.INVITE and not invite:
        raise ForbiddenError(both("signup.invited"), hint=both("signup.ask"))
    code = digest(invite) if invite else ""
    if code and not services.invites.valid(code):
        raise ForbiddenError(both("signup.code"), hint=both("signup.ask"))
    _check_name(name)
    _check_password(services, name, password)
    if name == FIRST:
        raise TakenError(f"the name {name} is taken", hint="choose another")
    pending = mode is SignupMode.APPROVE and not code
    user = services.people.add(name, hash_password(password), pending=pending, invite=code)
    if code:
        seats.bring_keys(services, user)
    return user


def approve(services: Services, by: User, name: str) -> User:
    """Let somebody log in whose account waited for it, for administrators."""
    if by.role is not Role.ADMIN:
        raise ForbiddenError("only administrators may approve accounts")
    found = services.people.resolve(name)
    if found is None:
        raise UnknownError(f"nobody is called {name}", hint="essaim users lists them")
    if not found.pending:
        raise RejectedError(f"{name} does not wait for approval", hint="essaim users lists them")
    return services.people.change(found.id, {"disabled": False, "pending": False})


def login(services: Services, name: str, password: str, *, seen: Seen = NOWHERE) -> Tokens:
    """Begin a session.  Who is not known, disabled or wrong is told the same, after as long.

    That an account waits for approval is said to who knows its password.
    """
    found = services.people.find(name) if NAME.fullmatch(name) else None
    user, kept = found or (None, None)
    right = right_password(kept, password[:LONGEST]) and len(password) <= LONGEST
    if right and user is not None and user.disabled and user.pending:
        raise ForbiddenError(both("login.pending"))
    if not right or user is None or kept is None or user.disabled:
        raise UnauthorisedError("wrong name or password", hint="try again, or sign up")
    if outdated(kept):
        services.people.rehash(user.id, hash_password(password))
    return begin_session(services, user, seen=seen)


def begin_session(services: Services, user: User, *, seen: Seen = NOWHERE) -> Tokens:
    """Begin a session of somebody who has proved who they are, however they did."""
    token = new_token("refresh")
    # Processes of the release that keeps its key in the database look for the id itself.
    plain = services.signing_keys[ACCESS].in_database
    sid = f"s-{secrets.token_hex(8)}" if plain else new_token("sid")
    services.people.open_session(kept_as(sid), user.id, digest(token), SESSION_SECONDS, seen=seen)
    return _tokens(services, user, sid, token)


def refresh(services: Services, refresh_token: str, *, seen: Seen = NOWHERE) -> Tokens:
    """Go on with a session.  A token serves once; shown twice, the session is revoked."""
    token, spare = new_token("refresh"), new_token("sid")
    secret, _, sid = refresh_token.partition(BESIDE)
    outcome, opened = services.people.rotate(
        digest(secret),
        digest(token),
        SESSION_SECONDS,
        known=hidden(sid) if sid else "",
        spare=hidden(spare),
        seen=seen,
    )
    if outcome is Rotation.REUSED:
        raise UnauthorisedError(
            "this refresh token was used before: its session is revoked",
            hint="log in again; change your password if it was not you",
        )
    if opened is None:
        raise UnauthorisedError("this session is over", hint="log in again")
    if opened.id.startswith("s-"):
        sid = opened.id
    elif opened.id == hidden(spare):
        sid = spare
    return _tokens(services, opened.user, sid, token)


def logout(services: Services, session: Session) -> None:
    """End a session at once: its tokens are worth nothing any more."""
    services.people.revoke(session.sid)


def authenticate(
    services: Services, shown: str, permission: Permission = Permission.PERSONAL
) -> Session:
    """Return who shows this token, as they are now: roles and bans count from the next request.

    The one place where a person is authenticated: whatever else may prove who somebody is comes
    here.  A program's token must give `permission`; a person has what their role has.
    """
    if shown.startswith(f"{PROGRAM}_"):
        return _program(services, shown, permission)
    return _person(services, shown)


def _program(services: Services, shown: str, permission: Permission) -> Session:
    found = services.people.tokens.find(digest(shown))
    if found is None:
        raise UnauthorisedError(
            "this API token is unknown, revoked or expired", hint="make another: essaim tokens"
        )
    user, token = found
    if permission not in token.scope.allows:
        raise ForbiddenError(
            f"an API token of scope {token.scope} may not do this",
            hint="log in" if permission is Permission.PERSONAL else "use one of a wider scope",
        )
    user = dataclasses.replace(user, role=token.scope.limit(user.role))
    return Session(user, scope=token.scope)


def _person(services: Services, access_token: str) -> Session:
    claims = read_access(services.signing_keys[ACCESS].believed(), access_token)
    opened = services.people.session(kept_as(str(claims["sid"])))
    if opened is None or opened.user.id != claims["sub"]:
        raise UnauthorisedError("this session is over", hint="log in again")
    return Session(opened.user, opened.id, fresh=opened.fresh)


def confirm(services: Services, session: Session, current: str | None) -> None:
    """ReauthenticateError unless somebody is there in person, and not only their access token.

    They are if they give their password, or logged in a moment ago.  A program has no password:
    its scope counts.
    """
    if session.fresh or session.scope is not None:
        return
    if not current:
        raise ReauthenticateError(both("password.needed"), hint=both("password.prove"))
    kept = services.people.find(session.user.name)
    if not right_password(kept[1] if kept else None, current[:LONGEST]):
        raise ReauthenticateError(both("password.not_yours"), hint=both("password.prove"))


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

    `name` may be the id of an account, which nobody else can have taken.

    Whoever is disabled, or gets another password, is logged out everywhere; what a disabled person
    waits for is given up, and what they have is taken back.  The last administrator stays one.
    """
    given: dict[str, Any] = {
        "role": None if role is None else Role(role).value,
        "project": project,
        "machines": machines,
        "hours": hours,
        "disabled": disabled,
    }
    values = {key: value for key, value in given.items() if value is not None}
    if disabled is False:
        values["pending"] = False
    own = name == by.id or (name == by.name and not ID.fullmatch(name))
    if by.role is not Role.ADMIN and (values or not own):
        raise ForbiddenError("only administrators may change people")
    _check_change(project, machines, hours)
    if password is not None:
        _check_password(services, name, password)
        values["password"] = hash_password(password)
    user = services.people.change(name, values)
    if user.disabled:
        services.leases.give_up_waiting(user.id)
        end_disabled(services, by.name)
    return user


def change_in_person(
    services: Services, session: Session, name: str, *, current: str | None = None, **changes: Any
) -> User:
    """Change a person as `change_user` does, for somebody who is there in person.

    No program changes a password, whatever its scope.
    """
    if session.scope is not None and "password" in changes:
        raise ForbiddenError("an API token may not change a password", hint="log in")
    confirm(services, session, current)
    return change_user(services, session.user, name, **changes)


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
    keys = services.signing_keys[ACCESS]
    access = sign_access(keys.signing(), user=user.id, role=user.role.value, session=sid)
    # Only the tokens know the id: the next access token has it from this one.
    carried = refresh_token if keys.in_database else f"{refresh_token}{BESIDE}{sid}"
    return Tokens(access=access, refresh=carried, expires_in=ACCESS_SECONDS)


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name) or ID.fullmatch(name):
        raise InvalidError(
            [
                Problem(
                    "a name has 3 to 32 characters: small letters, digits, dot, dash, underscore",
                    hint="it begins with a letter, and is no account's id",
                )
            ]
        )


def _check_password(services: Services, name: str, password: str) -> None:
    if not SHORTEST <= len(password) <= LONGEST:
        raise WeakError(both("password.short", shortest=SHORTEST), hint=both("password.sentence"))
    if guessable(name, password):
        raise WeakError(both("password.weak"), hint=both("password.sentence"))
    if services.breached is not None and services.breached.contains(password):
        raise WeakError(both("password.breached"), hint=both("password.sentence"))


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
