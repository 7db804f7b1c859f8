"""Who may do what: users, groups, tokens, roles, and the list of who has which role where."""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from essaim_lab.simulators.proxmox.errors import PveError, refused_permission
from essaim_lab.simulators.proxmox.roles import built_in, guards_bridges, is_path

ROOT = "root@pam"
TICKET_SECONDS = 7200


@dataclass
class Token:
    """A secret that stands for a user, perhaps with fewer rights."""

    value: str = field(repr=False)
    privsep: bool = True
    expire: int = 0
    comment: str = ""


@dataclass
class User:
    """Somebody who may log in."""

    password: str = field(default="", repr=False)
    enable: bool = True
    expire: int = 0
    groups: set[str] = field(default_factory=set)
    tokens: dict[str, Token] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)


class Access:
    """All of it, with the answers remembered until something changes."""

    def __init__(self, pools: Mapping[str, Any], version: int = 8) -> None:
        self.version = version
        self.users: dict[str, User] = {ROOT: User()}
        self.groups: dict[str, str] = {}
        self.roles = dict(built_in(version))
        #: (path, "user" | "group" | "token", who) -> role -> whether it goes on below
        self.rules: dict[tuple[str, str, str], dict[str, bool]] = {}
        self._pools = pools
        self._key = secrets.token_bytes(32)
        self._known: dict[tuple[str, str], dict[str, bool]] = {}

    def changed(self) -> None:
        """Forget what was remembered."""
        self._known.clear()

    # Who is it?

    def log_in(self, name: str, password: str, now: float) -> tuple[str, str]:
        """Give a ticket and what goes with it in every change."""
        user = self.users.get(name)
        right = user and user.password and hmac.compare_digest(user.password, password)
        if not (right or self.holder(password) == name) or not self._enabled(name, now):
            raise PveError("authentication failure", 401)
        return self._signed("PVE", name), self._signed("", name)

    def _signed(self, kind: str, name: str) -> str:
        # Tickets last two hours of the wall's time: a client's library renews them by its own.
        stamp = f"{int(time.time()):08X}"
        what = f"{kind}:{name}:{stamp}" if kind else stamp
        mark = hmac.new(self._key, f"{kind}:{name}:{stamp}".encode(), "sha256").hexdigest()
        return f"{what}::{mark}" if kind else f"{what}:{mark}"

    def holder(self, ticket: str) -> str:
        """Whose ticket it is; nobody's when it is wrong or old."""
        what, _, mark = ticket.partition("::")
        right = hmac.new(self._key, what.encode(), "sha256").hexdigest()
        words = what.split(":")
        if len(words) != 3 or not hmac.compare_digest(mark, right):  # noqa: PLR2004 - PVE:who:when
            return ""
        return words[1] if time.time() - int(words[2], 16) < TICKET_SECONDS else ""

    def matches(self, name: str, csrf: str) -> bool:
        """Whether that is what goes with the user's tickets."""
        stamp, _, mark = csrf.partition(":")
        right = hmac.new(self._key, f":{name}:{stamp}".encode(), "sha256").hexdigest()
        return hmac.compare_digest(mark, right)

    def bearer(self, text: str, now: float) -> str:
        """Whose token it is, as user@realm!name; nobody's when it is wrong."""
        name, _, value = text.partition("=")
        token = self.token(name)
        if not token or not hmac.compare_digest(token.value, value):
            return ""
        fresh = not token.expire or token.expire > now
        return name if fresh and self._enabled(name.partition("!")[0], now) else ""

    def token(self, name: str) -> Token | None:
        """The token of that full name."""
        owner, _, short = name.partition("!")
        user = self.users.get(owner)
        return user.tokens.get(short) if user else None

    def _enabled(self, name: str, now: float) -> bool:
        user = self.users.get(name)
        return bool(user and user.enable and (not user.expire or user.expire > now))

    # What may they do?

    @property
    def all_privileges(self) -> frozenset[str]:
        """Every privilege of this version."""
        return built_in(self.version)["Administrator"]

    def is_path(self, path: str) -> bool:
        """Whether rights can be given there."""
        return is_path(path, self.version)

    def privileges(self, who: str, path: str) -> AbstractSet[str]:
        """What somebody may do at that place."""
        return self.granted(who, path).keys()

    def granted(self, who: str, path: str) -> Mapping[str, bool]:
        """What somebody may do at that place, and whether that holds below it too."""
        if who == ROOT:
            return dict.fromkeys(self.all_privileges, True)
        known = self._known.get((who, path))
        if known is None:
            known = self._known[who, path] = self._compile(who, path)
        return known

    def _compile(self, who: str, path: str) -> dict[str, bool]:
        owner, mark, _ = who.partition("!")
        if not mark:
            return self._of_roles(self._with_pools("user", who, path))
        token = self.token(who)
        if token is None:
            return {}
        theirs = self.granted(owner, path)
        if not token.privsep:
            return dict(theirs)
        own = self._of_roles(self._with_pools("token", who, path))
        return {each: own[each] and theirs[each] for each in own if each in theirs}

    def _of_roles(self, roles: Mapping[str, bool]) -> dict[str, bool]:
        found: dict[str, bool] = {}
        for role, goes_on in roles.items():
            for privilege in self.roles.get(role, frozenset()):
                found[privilege] = found.get(privilege, False) or goes_on
        return found

    def _with_pools(self, kind: str, who: str, path: str) -> dict[str, bool]:
        """The roles at a place, with those that its pools give."""
        roles = self._roles(kind, who, path)
        if "NoAccess" in roles:
            return roles
        pooled: set[str] = set()
        for pool, members in self._pools.items():
            if path in members.paths:
                pooled |= self._roles(kind, who, f"/pool/{pool}").keys()
        if "NoAccess" in pooled:
            return {"NoAccess": False}
        return {**dict.fromkeys(pooled, False), **roles}

    def _roles(self, kind: str, who: str, path: str) -> dict[str, bool]:
        """The roles at a place: the nearest rule above it counts, a person's before a group's."""
        roles: dict[str, bool] = {}
        words = [word for word in path.split("/") if word]
        for depth in range(len(words) + 1):
            place = "/" + "/".join(words[:depth])
            last = depth == len(words)
            new = self._here(place, kind, [who], last=last)
            if not new and kind == "user":
                user = self.users.get(who)
                new = self._here(place, "group", sorted(user.groups if user else ()), last=last)
            roles = new or roles
        return {"NoAccess": roles["NoAccess"]} if "NoAccess" in roles else roles

    def _here(self, place: str, kind: str, who: Iterable[str], *, last: bool) -> dict[str, bool]:
        return {
            role: goes_on
            for name in who
            for role, goes_on in self.rules.get((place, kind, name), {}).items()
            if goes_on or last
        }

    def may(self, who: str, path: str, *wanted: str) -> bool:
        """Whether somebody has all of these there."""
        return self.granted(who, path).keys() >= set(wanted)

    def may_any(self, who: str, path: str, *wanted: str) -> bool:
        """Whether somebody has one of these there."""
        return not self.privileges(who, path).isdisjoint(wanted)

    def may_see_bridge(self, who: str, bridge: str) -> bool:
        """Whether a bridge is listed for somebody: they may use it, or one of its VLANs."""
        if who == ROOT or not guards_bridges(self.version):
            return True
        path = f"/sdn/zones/localnetwork/{bridge}"
        vlans = {place for place, _, _ in self.rules if place.startswith(f"{path}/")}
        return any(self.may_any(who, each, "SDN.Audit", "SDN.Use") for each in (path, *vlans))

    def need(self, who: str, path: str, *wanted: str) -> None:
        """Refuse unless somebody has all of these there."""
        there = self.privileges(who, path)
        for privilege in wanted:
            if privilege not in there:
                raise refused_permission(f"{path}, {privilege}")

    def need_any(self, who: str, path: str, *wanted: str) -> None:
        """Refuse unless somebody has one of these there."""
        if self.privileges(who, path).isdisjoint(wanted):
            raise refused_permission(f"{path}, {'|'.join(wanted)}")

    def need_modify(self, who: str, path: str) -> None:
        """Refuse unless somebody may give rights away there."""
        also = {"storage": "Datastore.Allocate", "vms": "VM.Allocate", "pool": "Pool.Allocate"}
        words = path.strip("/").split("/")
        more = [also[words[0]]] if len(words) > 1 and words[0] in also else []
        self.need_any(who, path, "Permissions.Modify", *more)

    def check(self, rule: Any, who: str, said: Mapping[str, Any]) -> None:
        """Refuse unless the rule of an endpoint allows it."""
        if rule == "world" or who == ROOT:
            return
        if rule is None:
            raise refused_permission("user != root@pam")
        if rule != "all":
            self._check(rule, who, said)

    def _check(self, rule: Any, who: str, said: Mapping[str, Any]) -> None:
        name, *rest = rule
        match name:
            case "and":
                for part in rest:
                    self._check(part, who, said)
            case "or":
                if not any(self._passes(part, who, said) for part in rest):
                    raise refused_permission()
            case "perm":
                self._check_place(rest, who, said)
            case "perm-modify":
                self.need_modify(who, _filled(rest[0], said))
            case "userid-param":
                self._check_person(rest[0], who, str(said.get("userid", "")))
            case _:  # userid-group: nobody is let in by their groups here
                self.need_any(who, "/access/groups", *rest[0])

    def _passes(self, rule: Any, who: str, said: Mapping[str, Any]) -> bool:
        try:
            self._check(rule, who, said)
        except PveError:
            return False
        return True

    def _check_place(self, rest: list[Any], who: str, said: Mapping[str, Any]) -> None:
        template, wanted, *options = rest
        chosen = dict(zip(options[::2], options[1::2], strict=True))
        if chosen.get("require_param", "") and chosen["require_param"] not in said:
            raise refused_permission()
        path = _filled(template, said)
        (self.need_any if chosen.get("any") else self.need)(who, path, *wanted)

    def _check_person(self, what: str, who: str, person: str) -> None:
        if what == "self":
            if who != person:
                raise refused_permission()
        else:
            self.need(who, f"/access/realm/{person.rpartition('@')[2]}", what)


def _filled(template: str, said: Mapping[str, Any]) -> str:
    return re.sub(r"\{(\w+)\}", lambda name: str(said.get(name[1], "")), template)
