"""Many who do a thing at once, in virtual time, where only so many are borne or chance decides."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

from essaim.plan.limits import Limit, refused, succeeded

#: Seconds that one takes, until one is refused, and until that one tries again.
EACH, IN_VAIN, LATER = 24.0, 10.0, 6.0


@dataclass
class Crowd:
    """What became of them."""

    limit: Limit
    seconds: float = 0.0
    refused: int = 0
    each: float = EACH


def crowd(
    many: int,
    *,
    first: int = 4,
    most: int = 64,
    borne: float = math.inf,
    then: tuple[float, float] = (math.inf, 0),
    chance: float = 0.0,
    until: float = math.inf,
    seed: int = 0,
) -> Crowd:
    """Let so many do it.

    More than `borne` at once are refused, from the moment `then` on another number; of the others
    a share is refused by `chance`, `until` that moment.
    """
    luck = random.Random(seed)
    its = Crowd(Limit(first))
    ready, now, lowered = [0.0] * many, 0.0, -1.0
    under_way: list[tuple[float, float, bool]] = []  # end, begin, whether it is in vain
    while ready or under_way:
        while ready and ready[0] <= now and len(under_way) < min(its.limit.allowed, most):
            heapq.heappop(ready)
            bears = then[1] if now >= then[0] else borne
            bad = len(under_way) >= bears or (now < until and luck.random() < chance)
            end = now + (IN_VAIN if bad else EACH) * luck.uniform(1.0, 1.05)
            heapq.heappush(under_way, (end, now, bad))
        if not under_way or (
            ready and now < ready[0] < under_way[0][0] and len(under_way) < its.limit.allowed
        ):
            now = ready[0]
            continue
        used = len(under_way)
        now, begun, bad = heapq.heappop(under_way)
        if not bad:
            its.limit = succeeded(its.limit, used, 64)
            continue
        its.refused += 1
        heapq.heappush(ready, now + LATER)
        if begun >= lowered:  # as the store does: of those before, none says anything new
            before, its.limit = its.limit, refused(its.limit, used)
            lowered = now if its.limit.allowed < before.allowed else lowered
    its.seconds = now
    return its
