"""Rent machines, keep them longer, give them back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim.model.errors import (
    EssaimError,
    ForbiddenError,
    ImpossibleError,
    InvalidError,
    Problem,
    UnknownError,
)
from essaim.model.fleet import Lease, LeaseState, Node, Role, Wish
from essaim.model.public_keys import PUBLIC_KEY, RSA_BITS, is_weak
from essaim.model.words import both
from essaim.plan.placement import shortage
from essaim.plan.queue import eta

if TYPE_CHECKING:
    from essaim.model.fleet import User, Visit
    from essaim.usecases.services import Services

#: No lease is asked for, or made longer, by more than this: a term.
LONGEST = 180 * 24 * 3600
SHORTEST = 60
LONGEST_HOLD = 24 * 3600
MOST_MACHINES = 10_000
MOST_CORES = 65_536
MOST_MEMORY = 2**30
MOST_LABELS = 32
PRIORITIES = 1000
#: Milliseconds below which an estimate says nothing.
LEAST_WAIT = 1000
#: Why a lease ended, as it is stored: the gateway tells its owner.
RELEASED_BY = "released by "
TIME_IS_OVER = "its time is over"
OWNER_DISABLED = "its owner was disabled"

WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
REQUEST = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease with its machines, or its place in the queue."""

    lease: Lease
    nodes: list[Node]
    position: int | None = None  #: 1 is next
    eta: int | None = None  #: milliseconds since 1970; None when nobody can tell


def rent(services: Services, by: User, wish: Wish, public_key: str, *, key: str = "") -> Lease:
    """Rent machines for oneself: granted at once with its run started, or queued.

    The same `key` returns the same lease.  QuotaError when it is more than one may have,
    ImpossibleError when there are no such machines, free or not.
    """
    _check(by, wish, public_key, key)
    made = services.leases.rent(by.id, wish, public_key, request=key, check=_possible)
    if made.state is LeaseState.QUEUED:
        # Somebody may have passed over, or just returned, what this one waits for.
        grant_queue(services)
        return services.leases.get(made.id) or made
    if made.state is LeaseState.GRANTED:
        services.courier.wake(made.run)
    return made


def extend(services: Services, by: User, lease_id: str, seconds: int) -> Lease:
    """Keep one's machines so many seconds longer, within the quota; operators may for others."""
    if not 1 <= seconds <= LONGEST:
        raise InvalidError([Problem(f"seconds must be between 1 and {LONGEST}")])
    _mine(services, by, lease_id)
    return services.leases.extend(lease_id, seconds)


def release(services: Services, by: User, lease_id: str, *, failed: bool = False) -> Lease:
    """Give machines back; operators may for others.  Done twice, it is done once.

    When what ran there failed and its wish says so, they are held a while for debugging instead;
    a second release then gives them back.
    """
    found = _mine(services, by, lease_id)
    if failed and found.wish.hold and found.held_at is None and found.state is LeaseState.ACTIVE:
        return services.leases.hold(lease_id)
    ending = services.leases.release(lease_id, reason=f"{RELEASED_BY}{by.name}", who=by.name)
    if ending.run:
        services.courier.wake(ending.run)
    return ending


def lease(services: Services, by: User, lease_id: str) -> LeaseView:
    """One lease, one's own or, for operators, anybody's."""
    return view(services, _mine(services, by, lease_id))


def view(services: Services, found: Lease) -> LeaseView:
    """Show a lease with its machines, or its place in the queue."""
    if found.state is LeaseState.QUEUED:
        line = services.leases.line()
        ids = [each.id for each in line.leases]
        if found.id in ids:
            when = eta(line.leases, found.id, line.busy, line.free, line.now)
            if when is not None and when < line.now + LEAST_WAIT:
                # There are machines enough and yet it waits: nobody knows for how long.
                when = None
            return LeaseView(found, [], ids.index(found.id) + 1, when)
        found = services.leases.get(found.id) or found  # granted in between
    nodes = {node.id: node for node in services.fleet.list(ids=found.nodes)} if found.nodes else {}
    return LeaseView(found, [nodes[key] for key in found.nodes if key in nodes])


def leases(
    services: Services,
    by: User,
    *,
    all: bool = False,  # noqa: A002 - as asked
    after: tuple[int, str] | None = None,
    limit: int = 1000,
) -> list[Lease]:
    """List one's leases, the newest first; operators may ask for everybody's.

    At most so many, after the lease with this `asked_at` and id.
    """
    if all and by.role is Role.MEMBER:
        raise ForbiddenError("only operators may see everybody's leases")
    return services.leases.list(user=None if all else by.id, after=after, limit=limit)


def visits(
    services: Services,
    by: User,
    lease_id: str,
    *,
    after: tuple[int, str] | None = None,
    limit: int = 200,
) -> list[Visit]:
    """List who came through the gateway to a lease of one's own, the newest first."""
    _mine(services, by, lease_id)
    return services.visits.list(lease=lease_id, after=after, limit=limit)


def migrate(services: Services, lease_id: str, node_id: str, reason: str) -> str:
    """Move a lease off a node that is lost; return the run, or nothing when it needs none."""
    run = services.leases.migrate(lease_id, node_id, reason=reason)
    if run:
        services.courier.wake(run)
    return run


def expire(services: Services) -> list[Lease]:
    """Begin to end every lease whose time is over; return those that this call saw to."""
    return _end(services, services.leases.expired(), TIME_IS_OVER, "the clock")


def end_disabled(services: Services, who: str) -> list[Lease]:
    """Begin to end every lease whose owner is disabled; return those that this call saw to."""
    return _end(services, services.leases.of_disabled(), OWNER_DISABLED, who)


def _end(services: Services, leases: Sequence[Lease], reason: str, who: str) -> list[Lease]:
    ending = []
    for due in leases:
        ended = services.leases.release(due.id, reason=reason, who=who)
        if ended.run:
            services.courier.wake(ended.run)
        ending.append(ended)
    return ending


def grant_queue(services: Services) -> list[Lease]:
    """Grant waiting leases in fair order while there are machines for the first of them."""
    granted: list[Lease] = []
    while some := services.leases.grant_some():
        for each in some:
            services.courier.wake(each.run)
        granted += some
    return granted


def _mine(services: Services, by: User, lease_id: str) -> Lease:
    found = services.leases.get(lease_id)
    if found is None or (by.role is Role.MEMBER and found.user != by.id):
        raise _unknown(lease_id)
    return found


def _unknown(lease_id: str) -> EssaimError:
    return UnknownError(f"no lease {lease_id}", hint="essaim leases lists yours")


def _possible(wish: Wish, nodes: Sequence[Node]) -> None:
    """Refuse a wish that would wait for ever."""
    found = shortage(wish, nodes)
    if found is not None:
        key, fields = found
        raise ImpossibleError(both(key, **fields), hint=both("rent.less"))


def _check(by: User, wish: Wish, public_key: str, key: str) -> None:
    problems = _wish(wish)
    if not PUBLIC_KEY.fullmatch(public_key):
        problems.append(
            Problem("public_key is not one SSH public key", hint="one line of ~/.ssh/*.pub")
        )
    elif is_weak(public_key):
        what = f"public_key is an RSA key of less than {RSA_BITS} bits"
        problems.append(Problem(what, hint="ssh-keygen -t ed25519 makes a good one"))
    if key and not REQUEST.fullmatch(key):
        problems.append(Problem("an idempotency key has up to 128 printable characters"))
    if problems:
        raise InvalidError(problems)
    if wish.priority and by.role is Role.MEMBER:
        raise ForbiddenError("only operators may set priorities")


def _wish(wish: Wish) -> list[Problem]:
    bounds = [
        ("count", wish.count, 1, MOST_MACHINES),
        ("cores", wish.cores, 1, MOST_CORES),
        ("memory", wish.memory, 0, MOST_MEMORY),
        ("seconds", wish.seconds, SHORTEST, LONGEST),
        ("hold", wish.hold, 0, LONGEST_HOLD),
        ("priority", wish.priority, -PRIORITIES, PRIORITIES),
    ]
    problems = [
        Problem(f"{name} must be between {least} and {most}")
        for name, value, least, most in bounds
        if not least <= value <= most
    ]
    if wish.site and not WORD.fullmatch(wish.site):
        problems.append(Problem(f"site {wish.site!r} is not a name"))
    if len(wish.labels) > MOST_LABELS:
        problems.append(Problem(f"at most {MOST_LABELS} labels"))
    problems += [
        Problem(f"{key}={value} is not a label")
        for key, value in wish.labels.items()
        if not WORD.fullmatch(key) or (value and not WORD.fullmatch(value))
    ]
    return problems
