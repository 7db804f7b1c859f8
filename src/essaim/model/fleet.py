"""A fleet of machines that announced themselves, and the leases people have on them.

Times are milliseconds since 1970 in the database's clock.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar


class Role(enum.StrEnum):
    """What a person may do."""

    MEMBER = "member"  #: rent within quota, see what is theirs
    OPERATOR = "operator"  #: see everything, drain and readmit nodes, end leases
    ADMIN = "admin"  #: the rest: people, quotas, enrolment


class Scope(enum.StrEnum):
    """What a program may do with an API token; never more than its owner."""

    READ = "read"  #: see what the owner sees
    RENT = "rent"  #: rent, extend and release for the owner, and see what is theirs
    OPERATE = "operate"  #: whatever an operator may
    ADMIN = "admin"  #: whatever an administrator may

    @property
    def allows(self) -> frozenset[Permission]:
        """The permissions it gives."""
        return _ALLOWED[self]

    def limit(self, role: Role) -> Role:
        """The role that a program has whose owner has this one."""
        most = {Scope.RENT: Role.MEMBER, Scope.OPERATE: Role.OPERATOR}.get(self, Role.ADMIN)
        return min(role, most, key=_RANKS.index)

    @property
    def needs(self) -> Role:
        """The role one needs to give it to a program."""
        return {Scope.OPERATE: Role.OPERATOR, Scope.ADMIN: Role.ADMIN}.get(self, Role.MEMBER)

    def within(self, role: Role) -> bool:
        """Whether somebody of that role may give it to a program."""
        return _RANKS.index(self.needs) <= _RANKS.index(role)


class Permission(enum.Enum):
    """What a request needs of whoever is not there in person."""

    READ = enum.auto()
    RENT = enum.auto()
    CHANGE = enum.auto()
    PERSONAL = enum.auto()  #: passwords, sessions, tokens: nothing for programs


_RANKS = (Role.MEMBER, Role.OPERATOR, Role.ADMIN)
_ALLOWED = {
    Scope.READ: frozenset({Permission.READ}),
    Scope.RENT: frozenset({Permission.READ, Permission.RENT}),
    Scope.OPERATE: frozenset({Permission.READ, Permission.RENT, Permission.CHANGE}),
    Scope.ADMIN: frozenset({Permission.READ, Permission.RENT, Permission.CHANGE}),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """Where somebody came from, as far as the server could tell."""

    address: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSession:
    """Somebody is logged in somewhere; its id is for people, no token names it."""

    id: str
    key: str  #: as it is kept
    created_at: int
    used_at: int | None  #: when it was last carried on
    expires_at: int
    seen: Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiToken:
    """A program's way in, without its secret."""

    id: str
    name: str
    scope: Scope
    created_at: int
    expires_at: int
    used_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How much a person, or a project together, may have."""

    machines: int = 4  #: at the same time
    hours: float = 200.0  #: machine-hours in any thirty days


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A person with an account on the control plane."""

    id: str
    name: str
    role: Role = Role.MEMBER
    project: str = ""
    quota: Quota = Quota()
    disabled: bool = False
    pending: bool = False  #: disabled because an administrator has not approved it yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What the people of a project may have together."""

    name: str
    quota: Quota


class NodeState(enum.StrEnum):
    """Where a node is.  Only READY nodes are rented out."""

    CLEANING = "cleaning"  #: new, returned, or just released: not yet proven clean
    READY = "ready"
    HELD = "held"  #: by a lease
    LOST = "lost"  #: silent too long; cleaned before it serves again
    QUARANTINED = "quarantined"  #: could not be proven clean: a person decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine that registered itself through its agent."""

    id: str
    name: str
    site: str = ""
    cores: int
    memory: int  #: MiB
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = ""  #: where SSH answers, when it can be reached
    port: int = 22
    host_key: str = ""  #: pinned at registration
    tunnel: bool = False  #: only reachable through the agent's own connection
    state: NodeState = NodeState.CLEANING
    drained: bool = False  #: serves its lease to the end, then no more
    lease: str | None = None
    load: float = 0.0
    beat_at: int = 0  #: last heartbeat
    checked_at: int = 0  #: last check over SSH that succeeded
    failures: int = 0  #: checks over SSH that failed since
    reason: str = ""  #: why it is lost or quarantined
    waiting: bool = False  #: for an administrator to approve it; drained until then
    #: When this was read: what is asked of the machine because of it is of that moment.
    read_at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What an agent says about its machine when it joins."""

    name: str
    cores: int
    memory: int  #: MiB
    host_key: str  #: the machine's identity: who has it again is the same node
    labels: Mapping[str, str] = field(default_factory=dict)
    site: str = ""
    address: str = ""
    port: int = 22
    tunnel: bool = False
    tunnel_key: str = ""  #: the public key its own connection to the gateway is made with
    agent_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How an agent shows that a machine is the one whose host key it names."""

    challenge: str = ""  #: a text of ours …
    signature: str = ""  #: … signed with that host key, as `ssh-keygen -Y sign` does
    credential: str = ""  #: what the machine was given when it joined before


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """A token with which machines may join, without the token itself."""

    ID_LENGTH: ClassVar[int] = 12

    id: str  #: the beginning of the token's digest
    uses: int  #: machines that may still join
    site: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    who: str = ""  #: made it
    approve: bool = False  #: its machines wait for approval
    created_at: int = 0
    expires_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One heartbeat of an agent.  `seq` grows within a boot, so that a copy is recognised."""

    boot_id: str
    seq: int
    load: float = 0.0
    accounts: tuple[str, ...] = ()


class LeaseState(enum.StrEnum):
    """Where a lease is in its life."""

    QUEUED = "queued"
    GRANTED = "granted"  #: has its nodes; the accounts are being made
    ACTIVE = "active"
    MIGRATING = "migrating"  #: a node was lost; another takes its place
    ENDING = "ending"  #: expired or released; being cleaned up
    ENDED = "ended"
    FAILED = "failed"

    @property
    def served(self) -> bool:
        """It has nodes that are its owner's to use."""
        return self in (LeaseState.GRANTED, LeaseState.ACTIVE, LeaseState.MIGRATING)

    @property
    def open(self) -> bool:
        """It counts against its owner's quota."""
        return self not in (LeaseState.ENDED, LeaseState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants to rent: all of it or nothing."""

    count: int = 1
    cores: int = 1
    memory: int = 0  #: MiB
    labels: Mapping[str, str] = field(default_factory=dict)
    site: str = ""  #: any when empty
    seconds: int = 3600
    priority: int = 0  #: set by operators; higher first
    home: bool = True  #: keep copies of the home, so that a migration brings it along
    hold: int = 0  #: seconds to keep the machines for debugging when released as failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A person's right to some machines for a time."""

    id: str
    user: str
    project: str = ""
    wish: Wish
    public_key: str
    state: LeaseState
    account: str  #: the UNIX user on its machines, and the name at the gateway
    nodes: tuple[str, ...] = ()
    run: str = ""  #: the run that is working on it now
    asked_at: int = 0
    granted_at: int | None = None
    expires_at: int | None = None
    held_at: int | None = None  #: released as failed, and kept for its owner to look at
    ended_at: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened, told once.  Ids grow in the order in which events can be read."""

    id: int
    at: int
    kind: str  #: `lease.granted`, `node.lost`, `fleet.blind`, …
    text: str
    lease: str = ""
    node: str = ""
    user: str = ""  #: whom it concerns, as an id; empty when it is for operators only
    urgent: bool = False  #: a person has to look


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One connection through the gateway: who, when, how long, how much; not what."""

    id: str
    lease: str
    user: str
    node: str
    client: str  #: the address it came from
    key: str  #: the fingerprint of the key it was made with
    opened_at: int
    closed_at: int | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    refused: str = ""  #: why it was not let in
