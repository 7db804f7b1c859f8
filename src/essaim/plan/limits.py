"""How many may do a thing at once where nobody says how many: found out, and found out again.

A limit grows by one with each success until something is refused, then is halved, returns to what
was borne, and from there tries one more only after a while, longer after each time in vain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Of so many that were under way when one was refused, one is thought to have been too many.
MARGIN = 8
#: Rounds of successes at what was borne before one more is tried: at first, and at most.
SOON, LATE = 2, 8


@dataclass(frozen=True, slots=True)
class Gate:
    """A thing that only so many may do at once; `name` says which, for people too."""

    name: str
    first: int = 4  #: how many, as long as nothing is known
    most: int = 64


@dataclass(frozen=True, slots=True)
class Limit:
    """What is known of a gate."""

    allowed: int
    borne: int = 0  #: as many did it at once when one more was refused; 0: none ever was
    streak: int = 0  #: successes since it last changed
    patience: int = SOON  #: rounds of successes before more than `borne` is tried


def succeeded(limit: Limit, used: int, most: int) -> Limit:
    """One has done it, while so many in all did: a limit that was not reached proves nothing."""
    if used < limit.allowed:
        return limit
    if not limit.borne or limit.allowed < limit.borne:
        return replace(limit, allowed=min(limit.allowed + 1, most), streak=0)
    streak = limit.streak + 1
    if streak < limit.allowed * limit.patience or limit.allowed >= most:
        return replace(limit, streak=min(streak, limit.allowed * limit.patience))
    more = limit.allowed + 1
    return Limit(allowed=more, borne=more, patience=max(SOON, limit.patience - 1))


def refused(limit: Limit, used: int) -> Limit:
    """One was refused, while so many in all were at it, itself included.

    To be told of one refusal at a time: of those that began before the limit was last halved,
    none says anything new.
    """
    others = max(1, used - 1)
    borne = others - others // MARGIN
    return Limit(
        allowed=max(1, min(limit.allowed, used) // 2),
        borne=min(limit.borne or borne, borne),
        patience=min(limit.patience * 2, LATE),
    )
