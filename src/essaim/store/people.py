"""People, the projects they belong to, and their sessions.

Passwords come here as hashes, tokens and ids of sessions as digests: nothing in the database lets
anybody in.  Sessions of earlier releases have their id itself until `hide_sessions`.
"""

from __future__ import annotations

import enum
import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from essaim.model.errors import ForbiddenError, RejectedError, TakenError, UnknownError
from essaim.model.fleet import LoginSession, Quota, Role, Seen, User
from essaim.model.words import both
from essaim.store import invites
from essaim.store.api_tokens import ApiTokens
from essaim.store.database import Database, db_now
from essaim.store.project_limits import ProjectLimits
from essaim.store.rows import fitting, milliseconds, to_user
from essaim.store.schema import person, refresh, session, setting

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable, Mapping

    from sqlalchemy.engine import Connection, Row

#: What ids of accounts look like; nobody can sign up with such a name.
ID = re.compile(r"u-[0-9a-f]{12}")
BY_NAME = sa.select(person).where(person.c.name == bindparam("b_name"))
BY_ID = sa.select(person).where(person.c.id == bindparam("b_id"))
#: Seconds after its login at which a session is over, however much it is used.
SESSION_MOST = 90 * 24 * 3600
#: Seconds after its login for which a session needs no password for what is delicate.
FRESH = 10 * 60
#: Seconds that the access tokens of a session last at most.
LAST_ACCESS = 15 * 60
LIVE = (
    session.c.revoked_at.is_(None),
    session.c.expires_at > db_now(),
    session.c.created_at > db_now() - milliseconds(SESSION_MOST),
)
_SESSION = (
    sa.select(
        person,
        session.c.id.label("session_id"),
        (session.c.created_at > db_now() - milliseconds(FRESH)).label("fresh"),
    )
    .join(session, session.c.person == person.c.id)
    .where(*LIVE, person.c.disabled.is_(sa.false()))
)
BY_SESSION = _SESSION.where(session.c.id == bindparam("b_session"))
# One that is kept plainly may be hidden at any moment: see `hide_sessions`.
BY_EITHER = _SESSION.where(session.c.id.in_([bindparam("b_session"), bindparam("b_hidden")]))
# Locked, so that of two who show the same token one is first.
TOKEN = sa.select(refresh).where(refresh.c.digest == bindparam("b_digest")).with_for_update()
USE = sa.update(refresh).where(refresh.c.digest == bindparam("b_digest")).values(used_at=db_now())
KEEP = sa.insert(refresh)
PROLONG = (
    sa.update(session)
    .where(session.c.id == bindparam("b_session"))
    .values(
        expires_at=db_now() + bindparam("b_for"),
        used_at=db_now(),
        address=bindparam("b_address"),
        agent=bindparam("b_agent"),
    )
)
SHORTEN = (
    sa.update(session)
    .where(session.c.id == bindparam("b_session"))
    .values(expires_at=db_now() + milliseconds(LAST_ACCESS))
)
#: Those of earlier releases, whose id is not hidden.
PLAIN = session.c.id.like("s-%")
HIDE = sa.update(session).where(session.c.id == bindparam("b_old")).values(id=bindparam("b_new"))
FOLLOW = (
    sa.update(refresh)
    .where(refresh.c.session == bindparam("b_old"))
    .values(session=bindparam("b_new"))
)
REVOKE = sa.update(session).where(session.c.revoked_at.is_(None)).values(revoked_at=db_now())
ADMINS = (
    sa.select(person.c.id)
    .where(person.c.role == Role.ADMIN.value, person.c.disabled.is_(sa.false()))
    .with_for_update()
)


class Rotation(enum.Enum):
    """What came of showing a refresh token."""

    DONE = enum.auto()
    UNKNOWN = enum.auto()  #: never given out, or its session is over
    REUSED = enum.auto()  #: shown before: its session has been revoked


@dataclass(frozen=True, slots=True)
class Opened:
    """A session as it is kept, and whose it is."""

    id: str
    user: User
    fresh: bool = False  #: it began a moment ago


def hidden(session_id: str) -> str:
    """Return what is kept of a session's id, which only its tokens name."""
    return hashlib.sha256(session_id.encode()).hexdigest()


def kept_as(session_id: str) -> str:
    """Return how the session is kept that a token names."""
    return session_id if session_id.startswith("s-") else hidden(session_id)


NOWHERE = Seen()


def _where(seen: Seen) -> dict[str, str]:
    return {"address": fitting(seen.address), "agent": fitting(seen.agent)}


def _session(row: sa.Row[Any]) -> LoginSession:
    return LoginSession(
        # The same before and after it is hidden, and nothing that a token names.
        id=_either(row.id)["b_hidden"][:12],
        key=row.id,
        created_at=row.created_at,
        used_at=row.used_at,
        expires_at=min(row.expires_at, row.created_at + SESSION_MOST * 1000),
        seen=Seen(row.address or "", row.agent or ""),
    )


def _either(key: str) -> dict[str, str]:
    return {"b_session": key, "b_hidden": hidden(key) if key.startswith("s-") else key}


class People(ProjectLimits):
    """Keeps people and their sessions."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.tokens = ApiTokens(database)  #: what their programs show

    def add(
        self,
        name: str,
        password: str,
        *,
        role: Role = Role.MEMBER,
        quota: Quota | None = None,
        pending: bool = False,
        invite: str = "",
    ) -> User:
        """Add a person; TakenError when the name is somebody's.

        With the digest of an `invite` code, one use of it is taken and the account gets the rights
        that it carries.  ForbiddenError when the code is not valid: said before the name is looked
        at, so that only who holds a valid code learns which names exist.
        """
        allowed = quota or Quota()
        key = f"u-{secrets.token_hex(6)}"

        def body(connection: Connection) -> User:
            given = invites.use(connection, invite, key) if invite else {}
            if given is None:
                raise ForbiddenError(both("signup.code"), hint=both("signup.ask"))
            if connection.execute(BY_NAME, {"b_name": name}).first() is not None:
                raise TakenError(f"the name {name} is taken", hint="choose another")
            values = {
                "id": key,
                "name": name,
                "password": password,
                "role": role.value,
                "project": "",
                "machines": allowed.machines,
                "hours": allowed.hours,
                "disabled": pending,
                "pending": pending,
                **given,
            }
            connection.execute(sa.insert(person).values(created_at=db_now(), **values))
            return to_user(connection.execute(BY_NAME, {"b_name": name}).one())

        return self._database.write(body)

    def find(self, name: str) -> tuple[User, str] | None:
        """Return the person of that name with the hash of their password, or None."""
        row = self._database.read(lambda c: c.execute(BY_NAME, {"b_name": name}).one_or_none())
        return None if row is None else (to_user(row), row.password)

    def resolve(self, who: str) -> User | None:
        """Return the person with that id or name as they are now, or None."""
        row = self._database.read(lambda c: _one(c, who))
        return None if row is None else to_user(row)

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
        """Change columns of a person, given by id or name.

        Whoever is disabled or gets another password is logged out everywhere.  UnknownError when
        there is no such person; RejectedError when nobody could administer afterwards.
        """

        def body(connection: Connection) -> User:
            admins = connection.execute(ADMINS).scalars().all()
            row = _one(connection, name)
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
            return to_user(connection.execute(BY_ID, {"b_id": row.id}).one())

        return self._database.write(body)

    def rehash(self, user_id: str, password: str) -> None:
        """Keep the same password in a better hash."""
        better = sa.update(person).where(person.c.id == user_id).values(password=password)
        self._database.write(lambda c: c.execute(better))

    def open_session(
        self, key: str, user_id: str, digest: str, seconds: float, *, seen: Seen = NOWHERE
    ) -> None:
        """Begin a session that is kept as `key`; its first refresh token has this digest."""

        def body(connection: Connection) -> None:
            until = db_now() + milliseconds(seconds)
            begin = sa.insert(session).values(created_at=db_now(), expires_at=until)
            values = {"id": key, "person": user_id, **_where(seen)}
            connection.execute(begin, values)
            connection.execute(KEEP, {"digest": digest, "session": key})

        self._database.write(body)

    def rotate(
        self,
        old: str,
        new: str,
        seconds: float,
        *,
        known: str = "",
        spare: str = "",
        seen: Seen = NOWHERE,
    ) -> tuple[Rotation, Opened | None]:
        """Put a new refresh token in the place of one that was shown.

        A token shown twice means that two have it: the whole session is revoked, for good.
        Whoever shows it says as what the session is kept: `known`.  One who cannot, because the
        id was hidden after their token was made, goes on in a session that is kept as `spare`.
        """

        def body(connection: Connection) -> tuple[Rotation, Opened | None]:
            shown = connection.execute(TOKEN, {"b_digest": old}).one_or_none()
            if shown is None:
                return Rotation.UNKNOWN, None
            if shown.used_at is not None:
                connection.execute(REVOKE.where(session.c.id == shown.session))
                return Rotation.REUSED, None
            # Locked, so that its id is not hidden before the new token points to it.
            its = BY_EITHER.with_for_update()
            row = connection.execute(its, _either(shown.session)).one_or_none()
            if row is None:
                return Rotation.UNKNOWN, None
            key = row.session_id
            if spare and key != known and not key.startswith("s-"):
                _go_on(connection, key, spare)
                key = spare
            connection.execute(USE, {"b_digest": old})
            connection.execute(KEEP, {"digest": new, "session": key})
            where = {f"b_{name}": value for name, value in _where(seen).items()}
            longer = {"b_session": key, "b_for": milliseconds(seconds), **where}
            connection.execute(PROLONG, longer)
            return Rotation.DONE, Opened(key, to_user(row), bool(row.fresh))

        return self._database.write(body)

    def session(self, key: str) -> Opened | None:
        """Return a session; None once it is over or revoked, or its person disabled."""
        plain = key.startswith("s-")
        ask, values = (BY_EITHER, _either(key)) if plain else (BY_SESSION, {"b_session": key})
        row = self._database.read(lambda c: c.execute(ask, values).one_or_none())
        return None if row is None else Opened(row.session_id, to_user(row), bool(row.fresh))

    def revoke(self, key: str) -> None:
        """End a session.  Nothing when it is over."""
        those = session.c.id.in_(_either(key).values())
        self._database.write(lambda c: c.execute(REVOKE.where(those)))

    def sessions(self, user_id: str) -> builtins.list[LoginSession]:
        """List somebody's sessions that are not over, the newest first."""
        wanted = (
            sa.select(session)
            .where(session.c.person == user_id, *LIVE)
            .order_by(session.c.created_at.desc(), session.c.id)
        )
        return [_session(row) for row in self._database.read(lambda c: c.execute(wanted).all())]

    def hide_sessions(self, *, dropping: Iterable[str] = ()) -> int:
        """Keep digests of the ids of all sessions, and drop settings, in one transaction.

        Return how many ids were plain.
        """
        names = list(dropping)

        def body(connection: Connection) -> int:
            plain = connection.execute(sa.select(session.c.id).where(PLAIN)).scalars().all()
            changes = [{"b_old": key, "b_new": hidden(key)} for key in plain]
            if changes:
                connection.execute(HIDE, changes)
                connection.execute(FOLLOW, changes)
            connection.execute(sa.delete(setting).where(setting.c.name.in_(names)))
            return len(changes)

        return self._database.write(body)

    def prune(self, older_than: float) -> int:
        """Forget sessions that were over so many seconds ago; return how many."""
        over = session.c.expires_at < db_now() - milliseconds(older_than)
        theirs = refresh.c.session.in_(sa.select(session.c.id).where(over))

        def tokens(connection: Connection) -> None:
            connection.execute(sa.delete(refresh).where(theirs))

        self._database.write(tokens)
        self.tokens.prune(older_than)
        return self._database.delete(session, over)


def _one(connection: Connection, who: str) -> Row[Any] | None:
    """Find a person by id, else by name."""
    if ID.fullmatch(who):
        row = connection.execute(BY_ID, {"b_id": who}).one_or_none()
        if row is not None:
            return row
    return connection.execute(BY_NAME, {"b_name": who}).one_or_none()


def _go_on(connection: Connection, old: str, new: str) -> None:
    """Let a session go on as another row, where its refresh tokens then point to.

    The old row stays until its own access tokens are over: somebody may be using one just now.
    """
    same = [session.c.person, session.c.created_at, session.c.expires_at]
    copied = sa.select(sa.literal(new), *same).where(session.c.id == old)
    connection.execute(
        sa.insert(session).from_select(["id", "person", "created_at", "expires_at"], copied)
    )
    connection.execute(FOLLOW, {"b_old": old, "b_new": new})
    connection.execute(SHORTEN, {"b_session": old})
