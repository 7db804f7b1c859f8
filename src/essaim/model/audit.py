"""The audit trail: who did what, from where, with which outcome; chained so that a change shows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

#: What the first entry follows.
BEGINNING = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One act of a person or a machine, or an attempt at one."""

    action: str  #: the name of the API operation, or of the command: `login`, `rent`, `up`
    outcome: str  #: `done`, `refused` or `failed`
    who: str = ""  #: the person's id; empty for strangers, machines and local commands
    name: str = ""  #: the person's name at that time, or the name a stranger gave
    address: str = ""  #: where the request came from; `local` for a command on this computer
    object: str = ""  #: what it was done to: a lease, a node, a person, a stack
    request: str = ""  #: the request's id, as in the answer's X-Request-ID
    details: dict[str, Any] = field(default_factory=dict)  #: never a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """An entry in its place in the chain."""

    place: int
    at: int  #: milliseconds since 1970, by the database's clock
    entry: Entry
    previous: str
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Where a chain begins or ends."""

    place: int = 0
    hash: str = BEGINNING

    def __str__(self) -> str:
        return f"{self.place} {self.hash}"


def read_link(text: str | None) -> Link:
    """Read a link as `str` wrote it; the beginning when there is none."""
    place, _, digest = (text or "").partition(" ")
    return Link(place=int(place), hash=digest) if digest else Link()


def chain_hash(previous: str, place: int, at: int, entry: Entry) -> str:
    """Hash an entry together with the hash of the one before it."""
    said = json.dumps([previous, place, at, asdict(entry)], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(said.encode()).hexdigest()
