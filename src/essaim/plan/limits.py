"""How many may do a thing at once where nobody says how many: found out, and found out again.

A limit grows by one with each success until something is refused, then is halved, returns to what
was borne, and from there tries one more only after a while, longer after each time in vain.

Not every refusal is a matter of how many there are: a backup may hold the lock.  So it counts what
share was refused of late.  Refusals that were as frequent before the last step up are no reason to
take it back, and cost the limit no more than half their share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Of so many that were under way when one was refused, one is thought to have been too many.
MARGIN = 8
#: Rounds of successes at what was borne before one more is tried: at first, and at most.
SOON, LATE = 1, 8
#: Shares are counted in so many parts, and over about so many that have ended.
WHOLE, MEMORY = 1000, 32
#: The share after the first refusal; one that is more than chance; one that is far too much.
FIRST, SOME, FAR = 100, 150, 250
#: Refusals in a round, as parts of one: fewer are a quiet time, as many are more than chance.
QUIET, MANY = 250, 1000


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
    share: int = 0  #: of a thousand that ended of late, so many were refused


def succeeded(limit: Limit, used: int, most: int) -> Limit:
    """One has done it, while so many in all did: a limit that was not reached proves nothing."""
    share = limit.share - -(-limit.share // MEMORY)
    if used < limit.allowed:
        return replace(limit, share=share)
    if not limit.borne or limit.allowed < limit.borne:
        return replace(limit, allowed=min(limit.allowed + 1, most), streak=0, share=share)
    enough = limit.allowed * limit.patience
    streak = min(limit.streak + 1, enough)
    if streak < enough or limit.allowed >= most:
        return replace(limit, streak=streak, share=share)
    more = limit.allowed + 1
    # Where some are refused anyhow, waiting for a time without refusals is waiting for luck.
    sooner = limit.patience - 1 if _is_quiet(limit) else limit.patience // 3
    return Limit(allowed=more, borne=more, patience=max(SOON, sooner), share=share)


def refused(limit: Limit, used: int) -> Limit:
    """One was refused, while so many in all were at it, itself included.

    To be told of one refusal at a time: of those that began before the limit was last lowered,
    none says anything new.
    """
    at, others = min(limit.allowed, used), max(1, used - 1)
    half, borne = max(1, at // 2), others - others // MARGIN
    if not limit.borne:
        return Limit(allowed=half, borne=borne, share=FIRST)
    share = limit.share + (WHOLE - limit.share) // MEMORY
    later = min((limit.patience + 1) * 2, LATE)
    if share >= FAR:
        return Limit(allowed=half, borne=min(limit.borne, borne), patience=later, share=share)
    if _is_quiet(limit) and limit.streak < limit.allowed:
        fewer = max(1, at - 1)  # there was none before the last step up
        return Limit(allowed=fewer, borne=fewer, patience=later, share=share)
    return _lower(limit, at, others, share)


def _lower(limit: Limit, at: int, others: int, share: int) -> Limit:
    """Lower a limit by half the share of refusals: by nothing, if they may be chance."""
    less = max(round(at * share / WHOLE / 2), int(share >= SOME or share * at >= MANY))
    return replace(
        limit,
        allowed=max(1, at - less),
        borne=max(1, at - less, min(limit.borne, others)),
        patience=min(limit.patience + (share >= SOME), LATE),
        share=share,
    )


def _is_quiet(limit: Limit) -> bool:
    return limit.share * limit.allowed < QUIET
