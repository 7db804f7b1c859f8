"""Whether somebody may have what they ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from essaim.model.fleet import Lease, Quota, Wish

#: Quotas of hours look back so far.
WINDOW = 30 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Usage:
    """What somebody, or a project together, has."""

    machines: int = 0  #: of open leases, those that wait included
    hours: float = 0.0  #: machine-hours of the window: spent, and still to be spent


def usage(leases: Iterable[Lease], now: int) -> Usage:
    """Count what leases amount to.  The store counts the same in SQL; a test compares both."""
    theirs = list(leases)
    machines = sum(lease.wish.count for lease in theirs if lease.state.open)
    return Usage(machines, used_hours(theirs, now))


def used_hours(leases: Iterable[Lease], now: int) -> float:
    """Machine-hours of the window: those spent, and those that open leases may still spend."""
    total = 0
    for lease in leases:
        if lease.granted_at is None and not lease.state.open:
            continue
        began = now if lease.granted_at is None else lease.granted_at
        total += max(0, _until(lease, began) - max(began, now - WINDOW)) * lease.wish.count
    return total / 3_600_000


def _until(lease: Lease, began: int) -> int:
    if lease.ended_at is not None:
        return lease.ended_at
    if lease.expires_at is not None:
        return lease.expires_at
    return began + lease.wish.seconds * 1000


def refusal(wish: Wish, quota: Quota, used: Usage) -> str:
    """Why a wish goes beyond a quota, in words; nothing when it does not."""
    machines = used.machines + wish.count
    if machines > quota.machines:
        return f"{wish.count} more would make {machines} machines; {quota.machines} allowed"
    return longer(wish.count * wish.seconds / 3600, quota, used)


def longer(hours: float, quota: Quota, used: Usage) -> str:
    """Why so many more machine-hours go beyond a quota, in words; nothing when they do not."""
    if used.hours + hours > quota.hours:
        return (
            f"{hours:.1f} machine-hours more would make {used.hours + hours:.1f} in thirty days; "
            f"{quota.hours:.12g} allowed"
        )
    return ""
