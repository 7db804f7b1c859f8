"""A lock: all that a cluster is made of, as a value that is written, read back and compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from essaim.model.errors import InvalidError, Place, Problem

#: Of the shape of the file.  Who changes what a key means counts on.
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedImage:
    """What machines are made from."""

    description: str  #: digest of what `images/<name>.yaml` says
    builder: str
    form: str
    content: str = ""  #: digest of what was built; empty when nothing is built here
    packages: Mapping[str, str] = field(default_factory=dict)  #: with their versions
    #: Files that are not as their packages have them; None where that is not known.
    altered: tuple[str, ...] | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)  #: what the builder pinned
    tools: Mapping[str, str] = field(default_factory=dict)  #: it was built with


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedFile:
    """A file that a role puts on a machine."""

    role: str
    mode: str  #: as `chmod` takes it
    owner: str
    group: str  #: empty: the owner's own
    sha256: str  #: empty when it rests on what only the running cluster knows, or on a secret
    rests_on: tuple[str, ...] = ()  #: those values, by name: `needs.munge_key`, `vars.token`


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedNode:
    """One machine."""

    hostname: str
    address: str  #: with the length of its network's prefix
    seed: str  #: digest of what it is told at first boot, but for keys
    image: str
    size: Mapping[str, int]
    roles: tuple[str, ...]  #: in the order they are applied
    digests: Mapping[str, str] = field(default_factory=dict)  #: of each role: RoleDigests.of
    files: Mapping[str, LockedFile] = field(default_factory=dict)  #: by path; the last role wins


@dataclass(frozen=True, slots=True, kw_only=True)
class MayDiffer:
    """Something two raises of one lock may differ in."""

    what: str
    why: str
    paths: tuple[str, ...] = ()  #: of files that hold it; may hold *


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Everything, in one value.  Secrets appear only as references."""

    stack: str
    source: str  #: the stack's file, from the lab's root
    overrides: tuple[str, ...]
    wanted: str  #: digest of the stack as composed
    configuration: Mapping[str, Any]  #: resolved, as `essaim config show` prints it
    files: Mapping[str, str]  #: sha256 of every file it was composed from
    images: Mapping[str, LockedImage]
    nodes: Mapping[str, LockedNode]
    tools: Mapping[str, str] = field(default_factory=dict)
    may_differ: tuple[MayDiffer, ...] = ()


def seed_digest(hostname: str, address: str) -> str:
    """Digest what tells a machine who it is; keys and secrets are no part of it."""
    body = json.dumps({"address": address, "hostname": hostname}, sort_keys=True)
    return hashlib.sha256(body.encode()).hexdigest()


def to_text(lock: Lock) -> str:
    """Write a lock: the same text for the same lock, sorted, one value on a line."""
    body = {"version": VERSION, **asdict(lock)}
    return json.dumps(body, sort_keys=True, indent=2, ensure_ascii=False) + "\n"


def from_text(text: str, where: str) -> Lock:
    """Read a lock back; InvalidError names the file, and the line when it is not JSON."""
    again = "make it anew: essaim lock STACK"
    try:
        body = json.loads(text)
    except ValueError as exc:
        line = getattr(exc, "lineno", 1)
        problem = Problem(f"not a lock: {getattr(exc, 'msg', exc)}", Place(where, line), again)
        raise InvalidError([problem]) from exc
    version = body.get("version") if isinstance(body, dict) else None
    if version != VERSION:
        what = f"not a lock this version of Essaim reads: version {version}, not {VERSION}"
        raise InvalidError([Problem(what, Place(where, 1), again)])
    try:
        return _lock(body)
    except (KeyError, TypeError, AttributeError) as exc:
        what = f"not a lock: {exc} is missing or of another kind"
        raise InvalidError([Problem(what, Place(where, 1), again)]) from exc


def _lock(body: Mapping[str, Any]) -> Lock:
    plain = {key: value for key, value in body.items() if key != "version"}
    return Lock(
        **{
            **plain,
            "overrides": tuple(body["overrides"]),
            "images": {name: _image(its) for name, its in body["images"].items()},
            "nodes": {name: _node(its) for name, its in body["nodes"].items()},
            "may_differ": tuple(
                MayDiffer(**{**its, "paths": tuple(its["paths"])}) for its in body["may_differ"]
            ),
        }
    )


def _image(body: Mapping[str, Any]) -> LockedImage:
    altered = body["altered"]
    return LockedImage(**{**body, "altered": None if altered is None else tuple(altered)})


def _node(body: Mapping[str, Any]) -> LockedNode:
    files = {
        path: LockedFile(**{**its, "rests_on": tuple(its["rests_on"])})
        for path, its in body["files"].items()
    }
    return LockedNode(**{**body, "roles": tuple(body["roles"]), "files": files})
