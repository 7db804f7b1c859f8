"""A stack: what a user describes in a file, composed, checked and frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from essaim.model.names import MachineName
from essaim.model.roles import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a machine offers."""

    cores: int
    memory: int  #: MiB
    disk: int = 0  #: GiB; 0: whatever the image needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image as described in `images/<name>.yaml`; `digest` is what the cache is keyed by."""

    name: str
    builder: str
    digest: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A place machines come from: a driver and its settings."""

    name: str
    driver: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)  #: how many may do a thing at once there


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The stack's own network.  The first host address belongs to the site, never to a machine."""

    cidr: str
    internet: bool = False  #: machines that have no way out by themselves are given one


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine as wanted."""

    name: MachineName
    group: str
    index: int  #: 1 … count within the group
    address: str
    image: str
    size: Size
    roles: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()  #: groups whose roles must be ready before this machine's begin
    shared: tuple[str, ...] = ()  #: folders it has in common with the other machines of its stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Everything wanted, in one value.  Secrets appear only as references."""

    name: str
    site: Site
    network: Network
    machines: tuple[Machine, ...]
    images: Mapping[str, Image]
    roles: Mapping[str, Role]
    vars: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: role -> its variables
    bootstrap: str = "ssh"  #: who applies the roles of a new machine: we (ssh), or it (cloud-init)
    hints: tuple[str, ...] = ()  #: lines for people: what to type once it is up
    source: str = ""  #: the stack file, as the user named it
    overrides: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  #: for people: what was asked for and the site does not give
