"""Let machines join the fleet, hear that they live, and look after them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim.model.errors import (
    EssaimError,
    ForbiddenError,
    InvalidError,
    Problem,
    RejectedError,
    TransientError,
    UnauthorisedError,
    UnknownError,
)
from essaim.model.fleet import Announcement, Beat, NodeState, Proof, Role
from essaim.model.names import is_host
from essaim.remote.host_signatures import is_signed
from essaim.usecases.credentials import digest, new_token
from essaim.usecases.keys import public_keys

if TYPE_CHECKING:
    from essaim.model.fleet import Enrolment, Node, User
    from essaim.usecases.services import Services

__all__ = [
    "Announcement",
    "Beat",
    "Proof",
    "Registered",
    "approve",
    "challenge",
    "drain",
    "enrol",
    "enrolments",
    "heartbeat",
    "node",
    "nodes",
    "readmit",
    "register",
    "remove",
    "revoke",
]

WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
HOST_KEY = re.compile(r"[a-z0-9@.-]{3,64} [A-Za-z0-9+/=]{16,4096}( .*)?")
MOST_USES = 100_000
LONGEST = 366 * 24 * 3600
MOST_CORES = 65_536
MOST_MEMORY = 2**30  #: MiB
LAST_PORT = 65_535
BIG = 2**62
LONGEST_LINE = 190
NO_PROOF = Proof()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What an agent is told when it joins.  The credential is shown this once."""

    node_id: str
    credential: str
    server_public_key: str  #: with which the control plane will log in
    interval: float  #: seconds between heartbeats


def enrol(
    services: Services,
    by: User,
    *,
    uses: int = 1,
    seconds: int = 3600,
    site: str = "",
    labels: Mapping[str, str] | None = None,
    approve: bool = False,
) -> str:
    """Make a token that lets so many machines join, for administrators.  It is shown once.

    With `approve` its machines serve nobody before an administrator has approved each.
    """
    _administrators(by, "enrol machines")
    problems = [*_labels(labels or {}), *_word("site", site)]
    if not 1 <= uses <= MOST_USES:
        problems.append(Problem(f"uses must be between 1 and {MOST_USES}"))
    if not 1 <= seconds <= LONGEST:
        problems.append(Problem(f"seconds must be between 1 and {LONGEST}"))
    _refuse(problems)
    token = new_token("enrol")
    services.fleet.enrol(
        digest(token),
        uses=uses,
        seconds=seconds,
        site=site,
        labels=labels,
        who=by.name,
        approve=approve,
    )
    return token


def enrolments(services: Services, by: User) -> list[Enrolment]:
    """List the tokens with which machines may still join, for administrators."""
    _administrators(by, "see enrolments")
    return services.fleet.enrolments.list()


def revoke(services: Services, by: User, enrolment_id: str) -> None:
    """Let no machine join with a token any more, for administrators.  Those that have, stay."""
    _administrators(by, "revoke enrolments")
    if not services.fleet.enrolments.revoke(enrolment_id):
        raise UnknownError(
            f"no enrolment {enrolment_id}", hint="essaim nodes enrolments lists them"
        )


def challenge(services: Services, token: str) -> str:
    """Return what a machine that joins with this token signs; good once, for some minutes."""
    made = new_token("challenge")
    services.fleet.enrolments.add_challenge(digest(made), digest(token))
    return made


def register(
    services: Services,
    token: str,
    announcement: Announcement,
    proof: Proof = NO_PROOF,
    *,
    always: bool = False,
) -> Registered:
    """Let a machine join; it is cleaned, and proven clean, before it serves.

    A host key that is known is the same machine, if it proves that: its earlier credential ends.
    With `always`, a host key that is new has to be proven too.  UnauthorisedError when the proof
    will not do, or the token is unknown, used up or over.
    """
    _refuse(_announcement(announcement))
    proven = _proven(services, token, announcement, proof)
    if always and not proven:
        raise UnauthorisedError(
            "this control plane lets no machine join that does not sign with its host key",
            hint="join as root with the server's own agent.py",
        )
    if announcement.tunnel:  # nobody connects to it, whatever it says
        announcement = dataclasses.replace(announcement, address="")
    known = public_keys(services, "control")
    if not known:
        raise TransientError(
            "no controller has said yet which key it logs in to machines with",
            hint="start one: essaim controller",
        )
    credential = new_token("node")
    former = digest(proof.credential) if proof.credential else ""
    found, run = services.fleet.register(
        digest(token), announcement, digest(credential), proven=proven, former=former
    )
    if run:
        services.courier.wake(run)
    return Registered(
        node_id=found.id,
        credential=credential,
        server_public_key=known[0],
        interval=services.fleet.policy.interval,
    )


def heartbeat(services: Services, credential: str, beat: Beat) -> None:
    """Keep that a machine lives, and have it cleaned when it has accounts it should not have.

    UnauthorisedError; RejectedError when the beat is a copy.
    """
    if not 0 <= beat.seq < BIG or not 0 <= beat.load < BIG or not _line(beat.boot_id):
        _refuse([Problem("a heartbeat has a boot, a number that grows, and a load")])
    run = services.fleet.beat(digest(credential), beat)
    if run:
        services.courier.wake(run)


def nodes(services: Services, by: User) -> list[Node]:
    """List the fleet.  Members see the machines, operators also where they are and who has them."""
    return [_shown(each, by) for each in services.fleet.list()]


def node(services: Services, by: User, node_id: str) -> Node:
    """One node, as far as the caller may see it."""
    found = services.fleet.get(node_id)
    if found is None:
        raise _unknown(node_id)
    return _shown(found, by)


def drain(services: Services, by: User, node_id: str, on: bool) -> Node:  # noqa: FBT001 - as asked
    """Let a node serve its lease to the end and then no more, or again; for operators."""
    _operators(by)
    if not on and node(services, by, node_id).waiting:
        raise RejectedError(
            f"node {node_id} waits for approval", hint=f"essaim nodes approve {node_id}"
        )
    if not services.fleet.drain(node_id, on=on):
        raise _unknown(node_id)
    return node(services, by, node_id)


def approve(services: Services, by: User, node_id: str) -> Node:
    """Let a machine serve that joined with a token that says so; for administrators."""
    _administrators(by, "approve nodes")
    node(services, by, node_id)
    if not services.fleet.approve(node_id):
        raise RejectedError(
            f"node {node_id} does not wait for approval", hint=f"essaim nodes show {node_id}"
        )
    return node(services, by, node_id)


def readmit(services: Services, by: User, node_id: str) -> Node:
    """Have a lost or quarantined node cleaned, so that it may serve again; for operators."""
    _operators(by)
    found = node(services, by, node_id)
    run = services.fleet.clean(node_id, of=[NodeState.QUARANTINED, NodeState.LOST])
    if run is None:
        raise RejectedError(
            f"node {node_id} is {found.state}", hint="only lost or quarantined nodes are readmitted"
        )
    services.courier.wake(run)
    return node(services, by, node_id)


def remove(services: Services, by: User, node_id: str) -> None:
    """Forget a node that has no lease; for administrators.  Its agent is refused from then on."""
    _administrators(by, "remove nodes")
    found = node(services, by, node_id)
    if not services.fleet.remove(node_id):
        raise RejectedError(
            f"node {node_id} is held by lease {found.lease}", hint="drain it and wait"
        )


def _proven(services: Services, token: str, said: Announcement, proof: Proof) -> bool:
    """Whether a machine has shown that it has its host key; UnauthorisedError if it cannot."""
    if not proof.signature:
        return False
    ours = services.fleet.enrolments.take_challenge(digest(proof.challenge), digest(token))
    if not ours or not is_signed(proof.challenge, proof.signature, said.host_key):
        raise UnauthorisedError(
            "the signature is not by this host key, or what it signs is over", hint="join again"
        )
    return True


def _administrators(by: User, what: str) -> None:
    if by.role is not Role.ADMIN:
        raise ForbiddenError(f"only administrators may {what}")


def _operators(by: User) -> None:
    if by.role is Role.MEMBER:
        raise ForbiddenError("only operators may look after nodes")


def _unknown(node_id: str) -> EssaimError:
    return UnknownError(f"no node {node_id}", hint="essaim nodes lists them")


def _shown(found: Node, by: User) -> Node:
    if by.role is not Role.MEMBER:
        return found
    # Addresses and other people's leases are nobody's business.
    return dataclasses.replace(found, address="", host_key="", lease=None, reason="")


def _announcement(said: Announcement) -> list[Problem]:
    problems = [*_labels(said.labels), *_word("name", said.name), *_word("site", said.site)]
    if not said.name:
        problems.append(Problem("a machine has a name"))
    if not 1 <= said.cores <= MOST_CORES or not 1 <= said.memory <= MOST_MEMORY:
        problems.append(Problem("a machine has at least one core and some memory (MiB)"))
    if not 1 <= said.port <= LAST_PORT:
        problems.append(Problem(f"{said.port} is not a port"))
    if not HOST_KEY.fullmatch(said.host_key):
        problems.append(Problem("host_key is not an SSH public key"))
    if said.tunnel_key and not HOST_KEY.fullmatch(said.tunnel_key):
        problems.append(Problem("tunnel_key is not an SSH public key"))
    if not said.tunnel and not said.address:
        problems.append(Problem("a machine has an address, or a tunnel"))
    if said.address and not is_host(said.address):
        problems.append(Problem("address is not an IP address or a host name"))
    return problems


def _labels(labels: Mapping[str, str]) -> list[Problem]:
    return [
        Problem(f"{key}={value} is not a label: letters, digits, dot, dash, slash, underscore")
        for key, value in labels.items()
        if not WORD.fullmatch(key) or (value and not WORD.fullmatch(value))
    ]


def _word(what: str, text: str) -> list[Problem]:
    return [] if not text or WORD.fullmatch(text) else [Problem(f"{what} {text!r} is not a name")]


def _line(text: str) -> bool:
    return 0 < len(text) <= LONGEST_LINE and text.isprintable()


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise InvalidError(problems)
