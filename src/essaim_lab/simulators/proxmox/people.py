"""Logging in, users, tokens and rights, by the API."""

from __future__ import annotations

import re
import uuid
from typing import Any

from essaim_lab.simulators.proxmox.access import Token, User
from essaim_lab.simulators.proxmox.cluster import Call, Cluster, answers
from essaim_lab.simulators.proxmox.errors import PveError, refused_parameters

_SAID = ("comment", "email", "firstname", "lastname")


def _words(text: Any) -> list[str]:
    return [word for word in re.split(r"[,;\s]+", str(text or "")) if word]


@answers("POST /access/ticket")
def log_in(cluster: Cluster, call: Call) -> dict[str, Any]:
    """Give a ticket for a name and a password, or for a ticket that is still good."""
    name = call.said["username"]
    if "@" not in name and "realm" in call.said:
        name = f"{name}@{call.said['realm']}"
    ticket, csrf = cluster.access.log_in(name, call.said["password"], cluster.kernel.now)
    return {
        "username": name,
        "ticket": ticket,
        "CSRFPreventionToken": csrf,
        "clustername": cluster.settings.cluster,
        "cap": {},
    }


@answers("GET /access/domains")
def domains(_cluster: Cluster, _call: Call) -> list[dict[str, Any]]:
    """Where users come from."""
    return [
        {"realm": "pam", "type": "pam", "comment": "Linux PAM standard authentication"},
        {"realm": "pve", "type": "pve", "comment": "Proxmox VE authentication server"},
    ]


def _user(cluster: Cluster, name: str) -> User:
    if name not in cluster.access.users:
        raise PveError(f"no such user ('{name}')")
    return cluster.access.users[name]


def _told(name: str, user: User) -> dict[str, Any]:
    found = {"userid": name, "enable": int(user.enable), "expire": user.expire, **user.said}
    return {**found, "realm-type": name.rpartition("@")[2]}


@answers("GET /access/users")
def users(cluster: Cluster, call: Call) -> list[dict[str, Any]]:
    """Everybody, for those who may audit; else only oneself."""
    there = cluster.access.privileges(call.who, "/access/groups")
    all_ = not there.isdisjoint(("User.Modify", "Sys.Audit"))
    return [
        _told(name, user)
        for name, user in cluster.access.users.items()
        if all_ or name == call.who.partition("!")[0]
    ]


@answers("GET /access/users/{userid}")
def user(cluster: Cluster, call: Call) -> dict[str, Any]:
    """One of them."""
    found = _user(cluster, call.said["userid"])
    return {**_told(call.said["userid"], found), "groups": sorted(found.groups)}


@answers("POST /access/users")
def create_user(cluster: Cluster, call: Call) -> None:
    """Let somebody in."""
    name = call.said["userid"]
    if name in cluster.access.users:
        raise PveError(f"create user failed: user '{name}' already exists")
    cluster.access.users[name] = User(password=call.said.get("password", ""))
    change_user(cluster, call)


@answers("PUT /access/users/{userid}")
def change_user(cluster: Cluster, call: Call) -> None:
    """Change what is known of somebody."""
    found = _user(cluster, call.said["userid"])
    found.enable = bool(call.said.get("enable", found.enable))
    found.expire = call.said.get("expire", found.expire)
    if "groups" in call.said:
        missing = [
            each for each in _words(call.said["groups"]) if each not in cluster.access.groups
        ]
        if missing:
            raise PveError(f"no such group '{missing[0]}'")
        found.groups = set(_words(call.said["groups"]))
    found.said |= {key: call.said[key] for key in _SAID if key in call.said}
    cluster.access.changed()


@answers("DELETE /access/users/{userid}")
def delete_user(cluster: Cluster, call: Call) -> None:
    """Let somebody in no more."""
    _user(cluster, call.said["userid"])
    name = call.said["userid"]
    del cluster.access.users[name]
    for key in [key for key in cluster.access.rules if key[2].partition("!")[0] == name]:
        del cluster.access.rules[key]
    cluster.access.changed()


@answers("PUT /access/password")
def password(cluster: Cluster, call: Call) -> None:
    """Change a password."""
    _user(cluster, call.said["userid"]).password = call.said["password"]


@answers("GET /access/groups")
def groups(cluster: Cluster, _call: Call) -> list[dict[str, Any]]:
    """The groups and who is in them."""
    members = cluster.access.users.items()
    return [
        {
            "groupid": name,
            "comment": comment,
            "users": ",".join(who for who, found in members if name in found.groups),
        }
        for name, comment in cluster.access.groups.items()
    ]


@answers("POST /access/groups")
def create_group(cluster: Cluster, call: Call) -> None:
    """Make one."""
    if call.said["groupid"] in cluster.access.groups:
        raise PveError(f"create group failed: group '{call.said['groupid']}' already exists")
    cluster.access.groups[call.said["groupid"]] = call.said.get("comment", "")


@answers("GET /access/roles")
def roles(cluster: Cluster, _call: Call) -> list[dict[str, Any]]:
    """What rights go together."""
    return [
        {"roleid": name, "privs": ",".join(sorted(privileges))}
        for name, privileges in sorted(cluster.access.roles.items())
    ]


@answers("POST /access/roles")
def create_role(cluster: Cluster, call: Call) -> None:
    """Make one."""
    name, wanted = call.said["roleid"], _words(call.said.get("privs"))
    if name in cluster.access.roles:
        raise PveError(f"create role failed: role '{name}' already exists")
    for privilege in wanted:
        if privilege not in cluster.access.all_privileges:
            raise PveError(f"create role failed: invalid privilege '{privilege}'")
    cluster.access.roles[name] = frozenset(wanted)
    cluster.access.changed()


# Tokens


def _shown(name: str, token: Token) -> dict[str, Any]:
    found = {"tokenid": name, "privsep": int(token.privsep), "expire": token.expire}
    return {**found, "comment": token.comment} if token.comment else found


def _token(cluster: Cluster, call: Call) -> Token:
    found = _user(cluster, call.said["userid"]).tokens.get(call.said["tokenid"])
    if found is None:
        name = f"{call.said['userid']}!{call.said['tokenid']}"
        raise PveError(f"no such token '{call.said['tokenid']}' for user '{name}'")
    return found


@answers("GET /access/users/{userid}/token")
def tokens(cluster: Cluster, call: Call) -> list[dict[str, Any]]:
    """Somebody's tokens, without their values."""
    found = _user(cluster, call.said["userid"]).tokens
    return [_shown(name, token) for name, token in found.items()]


@answers("GET /access/users/{userid}/token/{tokenid}")
def token(cluster: Cluster, call: Call) -> dict[str, Any]:
    """One of them."""
    return _shown(call.said["tokenid"], _token(cluster, call))


@answers("POST /access/users/{userid}/token/{tokenid}")
def create_token(cluster: Cluster, call: Call) -> dict[str, Any]:
    """Make one; its value is told this once."""
    owner, name = call.said["userid"], call.said["tokenid"]
    found = _user(cluster, owner).tokens
    if name in found:
        raise refused_parameters({"tokenid": "Token already exists."})
    made = Token(
        str(uuid.uuid4()),
        bool(call.said.get("privsep", 1)),
        call.said.get("expire", 0),
        call.said.get("comment", ""),
    )
    found[name] = made
    cluster.access.changed()
    shown = {key: value for key, value in _shown(name, made).items() if key != "tokenid"}
    return {"full-tokenid": f"{owner}!{name}", "value": made.value, "info": shown}


@answers("PUT /access/users/{userid}/token/{tokenid}")
def change_token(cluster: Cluster, call: Call) -> dict[str, Any]:
    """Change what it may be used for."""
    found = _token(cluster, call)
    found.privsep = bool(call.said.get("privsep", found.privsep))
    found.expire = call.said.get("expire", found.expire)
    found.comment = call.said.get("comment", found.comment)
    cluster.access.changed()
    return _shown(call.said["tokenid"], found)


@answers("DELETE /access/users/{userid}/token/{tokenid}")
def delete_token(cluster: Cluster, call: Call) -> None:
    """Make it worthless."""
    _token(cluster, call)
    del _user(cluster, call.said["userid"]).tokens[call.said["tokenid"]]
    cluster.access.changed()


# Rights


@answers("GET /access/acl")
def acl(cluster: Cluster, call: Call) -> list[dict[str, Any]]:
    """Who has which role where, as far as somebody may know."""
    audit = cluster.access.may(call.who, "/access", "Sys.Audit")
    found = []
    for (path, kind, who), given in sorted(cluster.access.rules.items()):
        if audit or cluster.access.may(call.who, path, "Permissions.Modify"):
            for role, goes_on in given.items():
                entry = {"path": path, "type": kind, "ugid": who, "roleid": role}
                found.append({**entry, "propagate": int(goes_on)})
    return found


@answers("PUT /access/acl")
def change_acl(cluster: Cluster, call: Call) -> None:
    """Give roles to somebody at a place, or take them away."""
    said, access = call.said, cluster.access
    path = "/" + "/".join(word for word in said["path"].split("/") if word)
    if not any(said.get(key) for key in ("users", "groups", "tokens")):
        text = "either 'users', 'groups' or 'tokens' is required."
        raise refused_parameters(dict.fromkeys(("users", "groups", "tokens"), text))
    if not access.is_path(path) and not said.get("delete"):
        raise refused_parameters({"path": f"invalid ACL path '{said['path']}'"})
    for role in _words(said["roles"]):
        if role not in access.roles:
            raise PveError(f"ACL update failed: role '{role}' does not exist")
        _check_gift(cluster, call, path, role)
        for kind, who in _meant(cluster, call):
            given = access.rules.setdefault((path, kind, who), {})
            if said.get("delete"):
                given.pop(role, None)
            else:
                given[role] = bool(said.get("propagate", 1))
    access.changed()


def _meant(cluster: Cluster, call: Call) -> list[tuple[str, str]]:
    """Whom a change of rights is about; refused when one does not exist."""
    access = cluster.access
    found = []
    for kind, exists in (
        ("group", lambda who: who in access.groups),
        ("user", lambda who: who in access.users),
        ("token", access.token),
    ):
        for who in _words(call.said.get(f"{kind}s")):
            if not exists(who):
                raise PveError(f"ACL update failed: {_unknown(kind, who)}")
            found.append((kind, who))
    return found


def _unknown(kind: str, who: str) -> str:
    owner, mark, token = who.partition("!")
    return (
        f"no such token '{token}' for user '{owner}'" if mark else f"{kind} '{who}' does not exist"
    )


def _check_gift(cluster: Cluster, call: Call, path: str, role: str) -> None:
    """Nobody gives away more than they have, unless they may change all rights."""
    there = cluster.access.privileges(call.who, path)
    if "Permissions.Modify" in there:
        return
    if role == "NoAccess" or not cluster.access.roles[role] <= there:
        text = (
            f"Cannot add role '{role}' - requires 'Permissions.Modify' or superset of privileges."
        )
        raise refused_parameters({"role": text})


@answers("GET /access/permissions")
def permissions(cluster: Cluster, call: Call) -> dict[str, Any]:
    """What somebody may do, by place."""
    who, access = call.said.get("userid", call.who), cluster.access
    if who != call.who and not who.startswith(f"{call.who}!"):
        access.need(call.who, "/access", "Sys.Audit")
    if "path" in call.said:
        return {call.said["path"]: _flags(cluster, who, call.said["path"])}
    places = {"/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms"}
    places |= {key[0] for key in access.rules}
    places |= {path for pool in cluster.pools.values() for path in pool.paths}
    found = {place: _flags(cluster, who, place) for place in sorted(places)}
    return {place: flags for place, flags in found.items() if flags}


def _flags(cluster: Cluster, who: str, path: str) -> dict[str, int]:
    """Privilege -> 1 when it holds below that place too, else 0."""
    granted = cluster.access.granted(who, path)
    return {privilege: int(goes_on) for privilege, goes_on in sorted(granted.items())}
