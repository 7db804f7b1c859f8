"""The rules of the Guacamole simulator: who may see and change what, and what is refused.

As the web application behaves with its database extension (1.5 and 1.6).
"""

from __future__ import annotations

import collections
import hashlib
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ROOT = "ROOT"
#: No listing of a history is longer.
MOST = 1000
#: What the ids of log-ins are hashed with.
_LOGINS = uuid.UUID("e104741a-c949-3947-8d79-f3f2cdce7d6f")


class RefusedError(Exception):
    """An answer as the web application makes it of its exceptions."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "message": message,
            "translatableMessage": {
                "key": "APP.TEXT_UNTRANSLATED",
                "variables": {"MESSAGE": message},
            },
            "statusCode": None,
            "expected": None,
            "patches": None,
            "type": kind,
        }


def bad(message: str) -> RefusedError:
    """What cannot be meant."""
    return RefusedError(400, "BAD_REQUEST", message)


def denied() -> RefusedError:
    """What an unknown token is told, and somebody who may not."""
    return RefusedError(403, "PERMISSION_DENIED", "Permission Denied.")


def _unknown(what: str) -> RefusedError:
    return RefusedError(404, "NOT_FOUND", f'Not found: "{what}"')


@dataclass(slots=True)
class User:
    """An account; without a password it can only log in by another extension."""

    password: str | None = field(default=None, repr=False)
    attributes: dict[str, Any] = field(default_factory=dict)
    system: set[str] = field(default_factory=set)
    #: By kind, such as connectionPermissions, then by identifier.
    objects: dict[str, dict[str, set[str]]] = field(
        default_factory=lambda: collections.defaultdict(lambda: collections.defaultdict(set))
    )


@dataclass(slots=True)
class State:
    """What the database holds."""

    users: dict[str, User] = field(default_factory=dict)
    connections: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    #: Who logged in, in the order of their ids.
    logins: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0
    ahead: float = 0.0  #: seconds by which its clock is ahead of ours

    def next(self) -> str:
        """A new identifier."""
        self.number += 1
        return str(self.number)

    def now(self) -> float:
        """Its clock, in seconds."""
        return time.time() + self.ahead

    def log_in(self, username: str) -> None:
        """Note that somebody's session begins."""
        number = int(self.logins[-1]["identifier"]) + 1 if self.logins else 1
        name = _LOGINS.bytes + number.to_bytes(8)
        digest = hashlib.md5(name, usedforsecurity=False).digest()
        self.logins.append(
            {
                "startDate": round(self.now() * 1000),
                "endDate": None,
                "remoteHost": "127.0.0.1",
                "username": username,
                "active": False,
                "identifier": str(number),
                "uuid": str(uuid.UUID(bytes=digest, version=3)),
                "attributes": {},
                "logs": {},
            }
        )

    def end_sessions(self) -> None:
        """Forget every token, and note when."""
        self.tokens.clear()
        for entry in self.logins:
            entry["endDate"] = entry["endDate"] or round(self.now() * 1000)


_PATCHED = (
    "connectionPermissions",
    "connectionGroupPermissions",
    "sharingProfilePermissions",
    "activeConnectionPermissions",
    "userPermissions",
    "userGroupPermissions",
)
_TYPES = ("READ", "UPDATE", "DELETE", "ADMINISTER")


class Session:
    """What one account may do with the state.  The simulator's lock is held meanwhile."""

    def __init__(self, state: State, login: str) -> None:
        self._state = state
        self._login = login
        self._user = state.users[login]
        self._admin = "ADMINISTER" in self._user.system

    def answer(
        self, method: str, path: list[str], body: Any, query: Mapping[str, list[str]]
    ) -> Any:
        """Answer a question about what is below /session/data/SOURCE."""
        if (method, path) == ("GET", ["history", "users"]):
            return self._history(query)
        found = getattr(self, f"_{method}_{path[0]}".lower(), None)
        if found is None or len(path) > 3:  # noqa: PLR2004 - kind, identifier, aspect
            raise RefusedError(404, "NOT_FOUND", "HTTP 404 Not Found")
        if method != "GET" and not self._admin:
            raise denied()
        return found(path[1:], body)

    # --- the history of log-ins

    def _history(self, query: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """The first thousand in the order that is asked for; without one, as the table has them."""
        audits = self._admin or "AUDIT" in self._user.system
        shown = [
            entry for entry in self._state.logins if audits or entry["username"] == self._login
        ]
        for order in reversed(query.get("order", [])):
            name = order.removeprefix("-")
            if name != "startDate":
                raise bad(f'Invalid sort property: "{name}"')
            shown.sort(key=lambda entry: entry["startDate"], reverse=order != name)
        return shown[:MOST]

    # --- users

    def _get_users(self, path: list[str], _: Any) -> Any:
        if not path:
            return {name: self._account(name) for name in self._state.users if self._admin}
        user = self._known_user(path[0])
        if path[1:] == ["permissions"]:
            shown = {
                kind: {k: sorted(v) for k, v in user.objects[kind].items()} for kind in _PATCHED
            }
            return {**shown, "systemPermissions": sorted(user.system)}
        return self._account(path[0])

    def _post_users(self, _: list[str], body: Any) -> Any:
        name = body.get("username") or ""
        if not name.strip():
            raise bad("The username must not be blank.")
        if name in self._state.users:
            raise bad(f'User "{name}" already exists.')
        made = User(password=body.get("password"), attributes=body.get("attributes") or {})
        self._state.users[name] = made
        return body

    def _put_users(self, path: list[str], body: Any) -> None:
        user = self._known_user(path[0])
        user.attributes = body.get("attributes") or {}
        user.password = body.get("password") or user.password

    def _delete_users(self, path: list[str], _: Any) -> None:
        self._known_user(path[0])
        del self._state.users[path[0]]

    def _patch_users(self, path: list[str], body: Any) -> None:
        user = self._known_user(path[0])
        if path[1:] != ["permissions"]:
            raise RefusedError(405, "BAD_REQUEST", "HTTP 405 Method Not Allowed")
        for patch in body:
            _, kind, *rest = patch["path"].split("/", 2)
            if kind not in (*_PATCHED, "systemPermissions"):
                raise bad(f'Unsupported patch path: "{patch["path"]}"')
            if kind != "systemPermissions" and patch["value"] not in _TYPES:
                # valueOf() of a Java enum: an unchecked exception.
                raise RefusedError(500, "INTERNAL_ERROR", "Unexpected internal error")
            held = user.system if kind == "systemPermissions" else user.objects[kind][rest[0]]
            _change(held, patch)

    def _account(self, name: str) -> dict[str, Any]:
        return {
            "username": name,
            "disabled": False,
            "attributes": self._state.users[name].attributes,
        }

    def _known_user(self, name: str) -> User:
        if name not in self._state.users or not self._admin:
            raise _unknown(name)
        return self._state.users[name]

    # --- connections and groups

    def _get_connections(self, path: list[str], _: Any) -> Any:
        if not path:
            return {i: _shown(c) for i, c in self._state.connections.items() if self._sees(i)}
        known = self._state.connections.get(path[0])
        if known is None or not self._sees(path[0]):
            raise _unknown(path[0])
        if path[1:] == ["parameters"]:
            if not self._admin:
                raise RefusedError(
                    403, "PERMISSION_DENIED", "Permission to read connection parameters denied."
                )
            return known["parameters"]
        return _shown(known)

    def _post_connections(self, _: list[str], body: Any) -> Any:
        return self._made(self._state.connections, body, "connection")

    def _put_connections(self, path: list[str], body: Any) -> None:
        self._changed(self._state.connections, path[0], body, "connection")

    def _delete_connections(self, path: list[str], _: Any) -> None:
        self._removed(self._state.connections, path[0], "connectionPermissions")

    def _get_connectiongroups(self, path: list[str], _: Any) -> Any:
        if not path:
            return {i: g for i, g in self._state.groups.items() if self._sees_group(i)}
        if path[0] != ROOT and path[0] not in self._state.groups:
            raise _unknown(path[0])
        return self._tree(path[0]) if path[1:] == ["tree"] else self._state.groups.get(path[0])

    def _post_connectiongroups(self, _: list[str], body: Any) -> Any:
        return self._made(self._state.groups, body, "connection group")

    def _put_connectiongroups(self, path: list[str], body: Any) -> None:
        self._changed(self._state.groups, path[0], body, "connection group")

    def _delete_connectiongroups(self, path: list[str], _: Any) -> None:
        self._removed(self._state.groups, path[0], "connectionGroupPermissions")
        # Foreign keys cascade.
        for identifier, connection in list(self._state.connections.items()):
            if connection["parentIdentifier"] == path[0]:
                self._removed(self._state.connections, identifier, "connectionPermissions")

    def _sees(self, identifier: str) -> bool:
        return self._admin or "READ" in self._user.objects["connectionPermissions"][identifier]

    def _sees_group(self, identifier: str) -> bool:
        return self._admin or "READ" in self._user.objects["connectionGroupPermissions"][identifier]

    def _tree(self, identifier: str) -> dict[str, Any]:
        here = self._state.groups.get(identifier, {"name": ROOT, "type": "ORGANIZATIONAL"})
        inner = [i for i, g in self._state.groups.items() if g["parentIdentifier"] == identifier]
        connections = self._state.connections.items()
        return {
            **here,
            "identifier": identifier,
            "childConnectionGroups": [self._tree(i) for i in inner if self._sees_group(i)],
            "childConnections": [
                _shown(c)
                for i, c in connections
                if c["parentIdentifier"] == identifier and self._sees(i)
            ],
        }

    def _made(self, table: dict[str, dict[str, Any]], body: Any, what: str) -> Any:
        self._check(table, body, what, None)
        identifier = self._state.next()
        made = {"attributes": {}, **body, "identifier": identifier, "activeConnections": 0}
        table[identifier] = made
        return {**body, "identifier": identifier}

    def _changed(self, table: dict[str, dict[str, Any]], key: str, body: Any, what: str) -> None:
        if key not in table:
            raise _unknown(key)
        self._check(table, body, what, key)
        table[key] |= {**body, "identifier": key}

    def _removed(self, table: dict[str, dict[str, Any]], key: str, kind: str) -> None:
        if key not in table:
            raise _unknown(key)
        del table[key]
        for user in self._state.users.values():
            user.objects[kind].pop(key, None)

    def _check(
        self, table: dict[str, dict[str, Any]], body: Any, what: str, but: str | None
    ) -> None:
        name, parent = body.get("name") or "", body.get("parentIdentifier") or ROOT
        if not name.strip():
            raise bad(f"{what.capitalize()} names must not be blank.")
        if parent != ROOT and parent not in self._state.groups:
            raise _unknown(parent)
        body["parentIdentifier"] = parent
        for key, other in table.items():
            if key != but and (other["name"], other["parentIdentifier"]) == (name, parent):
                raise bad(f'The {what} "{name}" already exists.')


def _shown(connection: dict[str, Any]) -> dict[str, Any]:
    """A connection as listings have it: its parameters are asked for on their own."""
    return {key: value for key, value in connection.items() if key != "parameters"}


def _change(held: set[str], patch: dict[str, Any]) -> None:
    if patch["op"] == "add":
        held.add(patch["value"])
    elif patch["op"] == "remove":
        held.discard(patch["value"])
    else:
        raise bad(f'Unsupported patch operation: "{patch["op"]}"')
