"""Desktops in Guacamole, through its REST API.

    desktop:
      kind: guacamole
      url: https://desktops.example.org/guacamole
      user: essaim                       # an administrator of Guacamole
      secret: {file: ~/.config/essaim/guacamole}
      ca: ca.pem                         # when no public authority has signed its certificate
      wake: true                         # who logs in has their machine started

A desktop is a connection; its group is a connection group below the root.  A connection of ours
carries two parameters more, which say whom we let in and which control plane has made it; Guacamole
passes on to machines only the parameters it knows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from essaim.model.errors import RejectedError, TakenError, TransientError
from essaim.model.school import Desktop
from essaim.servers.guacamole_rest import GoneError, RefusedError, Rest

PROTOCOLS = ("rdp", "vnc", "ssh")
_ROOT = "ROOT"
#: The parameters that say who may use a connection of ours, and which control plane's it is.
_PEOPLE, _PLANE = "essaim-people", "essaim-plane"
#: Seconds for which a listing is believed by whoever would notice that it is old.
_FRESH = 10.0
_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A Guacamole and the account we have there."""

    url: str
    user: str
    secret: str = field(repr=False)
    source: str = ""  #: where it keeps accounts; its own choice when empty
    ca: str = ""
    wake: bool = False  #: whether who logs in has their machine started; see `logins`
    within: float = 15.0  #: seconds for one question and its answer
    plane: str = ""  #: which control plane this is: several may share one Guacamole


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIn:
    """Somebody logged in to Guacamole."""

    number: int  #: as its database counts them
    person: str  #: as they are called there, in small letters
    ago: float  #: seconds, by Guacamole's own clock


class _Listing:
    """Everything of a kind by its name, asked for once for all who want it at the same time."""

    def __init__(self, fetch: Callable[[], dict[Any, Any]]) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._since = float("-inf")
        self._found: dict[Any, Any] = {}

    def get(self, key: Any, since: float) -> Any:
        """What has that name; from a listing begun at that time or later."""
        with self._lock:
            if self._since < since:
                began = time.monotonic()
                self._found = self._fetch()
                self._since = began
            return self._found.get(key)

    def note(self, key: Any, value: Any) -> None:
        """Remember what was just made; None for what is gone."""
        with self._lock:
            if value is None:
                self._found.pop(key, None)
            else:
                self._found[key] = value


class Guacamole:
    """Desktops of one Guacamole.

    A new desktop for one person costs three questions, and listings are shared by all threads.
    """

    def __init__(self, settings: Settings) -> None:
        self._rest = Rest(
            url=settings.url,
            user=settings.user,
            secret=settings.secret,
            source=settings.source,
            ca=settings.ca,
            within=settings.within,
        )
        self._plane = settings.plane
        self._connections = _Listing(lambda: self._by_name("connections"))
        self._groups = _Listing(lambda: self._by_name("connectionGroups"))
        self._users = _Listing(lambda: {name: name for name in self._rest.call("GET", ["users"])})

    def close(self) -> None:
        """Close its connections."""
        self._rest.close()

    def publish(self, desktop: Desktop) -> None:
        """Let exactly its people use it; accounts without a password are made where missing.

        TakenError when somebody else made a connection of that name in the group.
        """
        if desktop.protocol not in PROTOCOLS:
            raise RejectedError(
                f"{desktop.name}: no desktop speaks {desktop.protocol}",
                hint=f"it may be {', '.join(PROTOCOLS)}",
            )
        since = time.monotonic() - _FRESH
        for _ in range(_TRIES):
            try:
                self._publish(desktop, since)
                return
            except GoneError:
                # Something was removed since it was listed.
                since = time.monotonic()
        raise TransientError(
            f"{desktop.name} was removed from Guacamole {_TRIES} times while it was published",
            hint="somebody else works on the same group: see who, then try again",
        )

    def withdraw(self, name: str, group: str = "") -> None:
        """Let nobody use it any more.  Nothing if it is gone or not ours.  Accounts stay."""
        began = time.monotonic()
        for since in (began - _FRESH, began):
            if found := self._found(name, group, since):
                # It is undone, too, when it could not be published, being somebody else's.
                if self._is_ours(self._parameters(found["identifier"])):
                    self._drop("connections", found["identifier"])
                    self._connections.note((found["parentIdentifier"], name), None)
                return

    def titles(self) -> Collection[tuple[str, str]]:
        """The group and name of every connection there, whoever made it, in two questions."""
        return {(group, entry["name"]) for group, entry in self._listed()}

    def published(self) -> Sequence[Desktop]:
        """Every desktop that this control plane published; asks for each, eight at a time."""
        listed = self._listed()
        with ThreadPoolExecutor(8) as pool:
            read = list(pool.map(self._parameters, (entry["identifier"] for _, entry in listed)))
        return [
            _desktop(entry, group, parameters)
            for (group, entry), parameters in zip(listed, read, strict=True)
            if self._is_ours(parameters)
        ]

    def logins(self) -> Sequence[LogIn]:
        """Who logged in, the last thousand of them, in one question."""
        entries, now = self._rest.newest(["history", "users"])
        return [
            LogIn(
                number=int(entry["identifier"]),
                person=str(entry["username"]).lower(),
                ago=max(0.0, now - entry["startDate"] / 1000),
            )
            for entry in entries
            if entry.get("identifier") and entry.get("username") and entry.get("startDate")
        ]

    def _listed(self) -> list[tuple[str, dict[str, Any]]]:
        """Every connection, with the name of its group."""
        groups = self._rest.call("GET", ["connectionGroups"])
        listed = self._rest.call("GET", ["connections"]).values()
        return [(groups.get(c["parentIdentifier"], {}).get("name", ""), c) for c in listed]

    def _found(self, name: str, group: str, since: float) -> dict[str, Any] | None:
        """The connection of a desktop, from listings of that time or later."""
        parent = self._groups.get((_ROOT, group), since) if group else {"identifier": _ROOT}
        found: dict[str, Any] | None = None
        if parent:
            found = self._connections.get((parent["identifier"], name), since)
        return found

    def _publish(self, desktop: Desktop, since: float) -> None:
        parent = self._group(desktop.group, since) if desktop.group else _ROOT
        key = (parent, desktop.name)
        found = self._connections.get(key, since)
        if found is None:
            found = self._create(desktop, parent)
        if found is None:
            # Somebody was quicker.
            found = self._connections.get(key, time.monotonic())
            if found is None:
                raise GoneError(f"the desktop {desktop.name} was made and removed meanwhile")
            self._update(desktop, found)
        elif "made" not in found:
            self._update(desktop, found)
        self._connections.note(key, {k: v for k, v in found.items() if k != "made"})
        for person in desktop.people:
            self._allow(person, found["identifier"], parent, since)

    def _group(self, name: str, since: float) -> str:
        found = self._groups.get((_ROOT, name), since)
        if found is None:
            body = {"parentIdentifier": _ROOT, "name": name, "type": "ORGANIZATIONAL"}
            made = self._make("connectionGroups", {**body, "attributes": {}})
            # Below the root Guacamole lets two who come at once both have the name: the first
            # of the two counts, and the other goes.
            found = self._groups.get((_ROOT, name), time.monotonic())
            if found is None:
                raise GoneError(f"the group {name} was made and removed meanwhile")
            if made and made["identifier"] != found["identifier"]:
                self._drop("connectionGroups", made["identifier"])
        return str(found["identifier"])

    def _create(self, desktop: Desktop, parent: str) -> dict[str, Any] | None:
        """Make the connection; None when there is one of that name."""
        made = self._make("connections", self._body(desktop, parent))
        return {**made, "made": True} if made else None

    def _make(self, kind: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Make something; None when its name exists."""
        try:
            made = self._rest.call("POST", [kind], body)
        except RefusedError as exc:
            if "already exists" in exc.what:
                return None
            raise
        return dict(made)

    def _update(self, desktop: Desktop, found: dict[str, Any]) -> None:
        """Make a connection of ours what the desktop says."""
        identifier = found["identifier"]
        before = self._rest.call("GET", ["connections", identifier, "parameters"])
        if not self._is_ours(before):
            who = "another control plane" if _PEOPLE in before else "somebody else"
            raise TakenError(
                f"Guacamole has a connection {desktop.name} in {desktop.group or 'its root'} "
                f"that was made by {who}",
                hint="choose another name or group, or remove that connection",
            )
        body = self._body(desktop, found["parentIdentifier"])
        if before == body["parameters"] and found["protocol"] == desktop.protocol:
            return
        # Those who may no longer are shut out before we forget who they were.
        for person in set(before[_PEOPLE].split()) - set(desktop.people):
            self._shut_out(person, identifier)
        # Limits and the like are an administrator's business: as they are now, not when listed.
        now = self._rest.call("GET", ["connections", identifier])
        changed = {**now, **body, "attributes": now.get("attributes") or {}}
        self._rest.call("PUT", ["connections", identifier], changed)
        found["protocol"] = desktop.protocol

    def _allow(self, person: str, identifier: str, parent: str, since: float) -> None:
        """Let somebody use a connection, and see the group it is in."""
        if self._users.get(person, since) is None:
            self._make("users", {"username": person, "attributes": {}})
            self._users.note(person, person)
        paths = [f"/connectionPermissions/{identifier}"]
        if parent != _ROOT:
            paths.append(f"/connectionGroupPermissions/{parent}")
        self._grant(person, [{"op": "add", "path": path, "value": "READ"} for path in paths])

    def _shut_out(self, person: str, identifier: str) -> None:
        path = f"/connectionPermissions/{identifier}"
        try:
            self._grant(person, [{"op": "remove", "path": path, "value": "READ"}])
        except GoneError:
            return  # an account that is gone may use nothing

    def _grant(self, person: str, patches: list[dict[str, str]]) -> None:
        self._rest.call("PATCH", ["users", person, "permissions"], patches)

    def _drop(self, kind: str, identifier: str) -> None:
        try:
            self._rest.call("DELETE", [kind, identifier])
        except GoneError:
            return

    def _is_ours(self, parameters: Mapping[str, str]) -> bool:
        """Whether this control plane made a connection; one that names none is any's."""
        return _PEOPLE in parameters and parameters.get(_PLANE, self._plane) == self._plane

    def _body(self, desktop: Desktop, parent: str) -> dict[str, Any]:
        """A connection as the API takes it: what a desktop says is data throughout."""
        return {
            "parentIdentifier": parent,
            "name": desktop.name,
            "protocol": desktop.protocol,
            "parameters": {
                **desktop.settings,
                "hostname": desktop.address,
                "port": str(desktop.port),
                _PEOPLE: " ".join(sorted(desktop.people)),
                **({_PLANE: self._plane} if self._plane else {}),
            },
            "attributes": {},
        }

    def _parameters(self, identifier: str) -> dict[str, str]:
        try:
            return dict(self._rest.call("GET", ["connections", identifier, "parameters"]))
        except GoneError:
            return {}

    def _by_name(self, kind: str) -> dict[tuple[str, str], dict[str, Any]]:
        """Everything of a kind by group and name; of two the one that was made first."""
        listed = sorted(
            self._rest.call("GET", [kind]).values(),
            key=lambda entry: (len(entry["identifier"]), entry["identifier"]),
            reverse=True,
        )
        return {(entry.get("parentIdentifier", _ROOT), entry["name"]): entry for entry in listed}


def _desktop(connection: dict[str, Any], group: str, parameters: dict[str, str]) -> Desktop:
    given = dict(parameters)
    people = tuple(given.pop(_PEOPLE).split())
    given.pop(_PLANE, None)
    address, port = given.pop("hostname", ""), given.pop("port", "")
    return Desktop(
        name=connection["name"],
        protocol=connection["protocol"],
        address=address,
        port=int(port) if port.isdigit() else 0,
        group=group,
        people=people,
        settings=given,
    )
