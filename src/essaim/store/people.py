"""People, the projects they belong to, and their sessions.

Passwords come here as hashes and tokens as digests: nothing in the database lets anybody in.
"""

from __future__ import annotations

import enum
import functools
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.errors import RejectedError, TakenError, UnknownError
from essaim.model.fleet import Project, Quota, Role, User
from essaim.store.database import Database, db_now
from essaim.store.rows import milliseconds, to_project, to_user
from essaim.store.schema import person, project, refresh, session
from essaim.store.settings import Settings

if TYPE_CHECKING:
    import builtins
    from collections.abc import Mapping

    from sqlalchemy.engine import Connection

BY_NAME = sa.select(person).where(person.c.name == bindparam("b_name"))
BY_SESSION = (
    sa.select(person)
    .join(session, session.c.person == person.c.id)
    .where(
        session.c.id == bindparam("b_session"),
        session.c.revoked_at.is_(None),
        session.c.expires_at > db_now(),
        person.c.disabled.is_(sa.false()),
    )
)
# Locked, so that of two who show the same token one is first.
TOKEN = sa.select(refresh).where(refresh.c.digest == bindparam("b_digest")).with_for_update()
USE = sa.update(refresh).where(refresh.c.digest == bindparam("b_digest")).values(used_at=db_now())
KEEP = sa.insert(refresh)
PROLONG = (
    sa.update(session)
    .where(session.c.id == bindparam("b_session"))
    .values(expires_at=db_now() + bindparam("b_for"))
)
REVOKE = sa.update(session).where(session.c.revoked_at.is_(None)).values(revoked_at=db_now())
ADMINS = (
    sa.select(person.c.id)
    .where(person.c.role == Role.ADMIN.value, person.c.disabled.is_(sa.false()))
    .with_for_update()
)


#: What a project has whose limit for it nobody named: more than there is.
UNLIMITED = {"machines": 1_000_000, "hours": 1e9}


class Rotation(enum.Enum):
    """What came of showing a refresh token."""

    DONE = enum.auto()
    UNKNOWN = enum.auto()  #: never given out, or its session is over
    REUSED = enum.auto()  #: shown before: its session has been revoked


@dataclass(frozen=True, slots=True)
class Opened:
    """A session, and whose it is."""

    id: str
    user: User


class People:
    """Keeps people and their sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @functools.cached_property
    def signing_key(self) -> bytes:
        """What access tokens are signed with, the same for all processes."""
        return Settings(self._database).secret("access-token-key")

    def add(
        self,
        name: str,
        password: str,
        *,
        role: Role = Role.MEMBER,
        quota: Quota | None = None,
    ) -> User:
        """Add a person; TakenError when the name is somebody's."""
        allowed = quota or Quota()

        def body(connection: Connection) -> User:
            if connection.execute(BY_NAME, {"b_name": name}).first() is not None:
                raise TakenError(f"the name {name} is taken", hint="choose another")
            values = {
                "id": f"u-{secrets.token_hex(6)}",
                "name": name,
                "password": password,
                "role": role.value,
                "project": "",
                "machines": allowed.machines,
                "hours": allowed.hours,
                "disabled": False,
            }
            connection.execute(sa.insert(person).values(created_at=db_now(), **values))
            return to_user(connection.execute(BY_NAME, {"b_name": name}).one())

        return self._database.write(body)

    def find(self, name: str) -> tuple[User, str] | None:
        """Return the person of that name with the hash of their password, or None."""
        row = self._database.read(lambda c: c.execute(BY_NAME, {"b_name": name}).one_or_none())
        return None if row is None else (to_user(row), row.password)

    def get(self, user_id: str) -> User | None:
        """Return the person with that id, or None."""
        wanted = sa.select(person).where(person.c.id == user_id)
        row = self._database.read(lambda c: c.execute(wanted).one_or_none())
        return None if row is None else to_user(row)

    def list(self) -> list[User]:
        """List everybody, by name."""
        wanted = sa.select(person).order_by(person.c.name)
        return [to_user(row) for row in self._database.read(lambda c: c.execute(wanted).all())]

    def has_admin(self) -> bool:
        """Whether anybody could let others in."""
        wanted = sa.select(person.c.id).where(person.c.role == Role.ADMIN.value).limit(1)
        return self._database.read(lambda c: c.execute(wanted).first()) is not None

    def change(self, name: str, values: Mapping[str, Any]) -> User:
        """Change columns of a person.

        Whoever is disabled or gets another password is logged out everywhere.  UnknownError when
        there is no such person; RejectedError when nobody could administer afterwards.
        """

        def body(connection: Connection) -> User:
            admins = connection.execute(ADMINS).scalars().all()
            row = connection.execute(BY_NAME, {"b_name": name}).one_or_none()
            if row is None:
                raise UnknownError(f"nobody is called {name}", hint="essaim users lists them")
            if values:
                its = person.c.id == row.id
                connection.execute(sa.update(person).where(its).values(**values))
            if values.get("disabled") or "password" in values:
                connection.execute(REVOKE.where(session.c.person == row.id))
            if admins and not connection.execute(ADMINS).first():
                raise RejectedError(
                    f"{name} is the last administrator", hint="make somebody else one first"
                )
            return to_user(connection.execute(BY_NAME, {"b_name": name}).one())

        return self._database.write(body)

    def rehash(self, user_id: str, password: str) -> None:
        """Keep the same password in a better hash."""
        better = sa.update(person).where(person.c.id == user_id).values(password=password)
        self._database.write(lambda c: c.execute(better))

    def open_session(self, user_id: str, digest: str, seconds: float) -> str:
        """Begin a session whose first refresh token has this digest; return its id."""
        key = f"s-{secrets.token_hex(8)}"

        def body(connection: Connection) -> None:
            until = db_now() + milliseconds(seconds)
            begin = sa.insert(session).values(created_at=db_now(), expires_at=until)
            connection.execute(begin, {"id": key, "person": user_id})
            connection.execute(KEEP, {"digest": digest, "session": key})

        self._database.write(body)
        return key

    def rotate(self, old: str, new: str, seconds: float) -> tuple[Rotation, Opened | None]:
        """Put a new refresh token in the place of one that was shown.

        A token shown twice means that two have it: the whole session is revoked, for good.
        """

        def body(connection: Connection) -> tuple[Rotation, Opened | None]:
            shown = connection.execute(TOKEN, {"b_digest": old}).one_or_none()
            if shown is None:
                return Rotation.UNKNOWN, None
            if shown.used_at is not None:
                connection.execute(REVOKE.where(session.c.id == shown.session))
                return Rotation.REUSED, None
            row = connection.execute(BY_SESSION, {"b_session": shown.session}).one_or_none()
            if row is None:
                return Rotation.UNKNOWN, None
            connection.execute(USE, {"b_digest": old})
            connection.execute(KEEP, {"digest": new, "session": shown.session})
            longer = {"b_session": shown.session, "b_for": milliseconds(seconds)}
            connection.execute(PROLONG, longer)
            return Rotation.DONE, Opened(shown.session, to_user(row))

        return self._database.write(body)

    def session_user(self, session_id: str) -> User | None:
        """Return whose session it is; None once it is over or revoked, or they are disabled."""
        values = {"b_session": session_id}
        row = self._database.read(lambda c: c.execute(BY_SESSION, values).one_or_none())
        return None if row is None else to_user(row)

    def revoke(self, session_id: str) -> None:
        """End a session.  Nothing when it is over."""
        self._database.write(lambda c: c.execute(REVOKE.where(session.c.id == session_id)))

    def projects(self) -> builtins.list[Project]:
        """List the projects that have a limit of their own, by name."""
        wanted = sa.select(project).order_by(project.c.name)
        return [to_project(row) for row in self._database.read(lambda c: c.execute(wanted).all())]

    def put_project(self, name: str, values: Mapping[str, Any]) -> Project:
        """Limit what the people of a project may have together; what is not named stays.

        A project that had no limits gets only those named.
        """
        its = project.c.name == name
        old = self._database.insert_missing(project).values(name=name, **UNLIMITED)

        def body(connection: Connection) -> Project:
            connection.execute(old)
            if values:
                connection.execute(sa.update(project).where(its).values(**values))
            return to_project(connection.execute(sa.select(project).where(its)).one())

        return self._database.write(body)

    def prune(self, older_than: float) -> int:
        """Forget sessions that were over so many seconds ago; return how many."""
        over = session.c.expires_at < db_now() - milliseconds(older_than)
        theirs = refresh.c.session.in_(sa.select(session.c.id).where(over))

        def tokens(connection: Connection) -> None:
            connection.execute(sa.delete(refresh).where(theirs))

        self._database.write(tokens)
        return self._database.delete(session, over)
