"""Who is next: fairness between people, then priority, then patience."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from essaim.model.fleet import Lease, LeaseState, Node, Wish
from essaim.plan.placement import place, suits, well


def line_up(waiting: Iterable[Lease], held: Mapping[str, int]) -> list[Lease]:
    """Order waiting leases as they should be granted.

    Priority first.  Within it, whoever has fewest machines (`held`, and those granted before in
    this very line) goes first, so that nobody waits behind another's hundred wishes; then who
    asked first.
    """
    has = Counter(held)
    classes: dict[int, list[Lease]] = {}
    for lease in sorted(waiting, key=lambda each: (each.asked_at, each.id)):
        classes.setdefault(lease.wish.priority, []).append(lease)
    line: list[Lease] = []
    for priority in sorted(classes, reverse=True):
        line += _take_turns(classes[priority], has)
    return line


def _take_turns(waiting: Iterable[Lease], has: Counter[str]) -> Iterator[Lease]:
    """Yield leases, given by age, so that who has least is next; counts in `has` what they get."""
    by_user: dict[str, deque[Lease]] = {}
    for lease in waiting:
        by_user.setdefault(lease.user, deque()).append(lease)
    heap = [_turn(has, leases[0]) for leases in by_user.values()]
    heapq.heapify(heap)
    while heap:
        *_, user = heapq.heappop(heap)
        lease = by_user[user].popleft()
        has[user] += lease.wish.count
        yield lease
        if by_user[user]:
            heapq.heappush(heap, _turn(has, by_user[user][0]))


def _turn(has: Counter[str], lease: Lease) -> tuple[int, int, str, str]:
    return has[lease.user], lease.asked_at, lease.id, lease.user


def allot(
    line: Iterable[Lease],
    nodes: Iterable[Node],
    now: int,
    fresh: float,
    possible: Callable[[Wish], bool],
) -> list[tuple[Lease, tuple[Node, ...]]]:
    """Give nodes to the leases of a line in its order, so that nobody is overtaken.

    Who does not get all they wish for keeps the nodes that would do for them: otherwise small
    wishes would pass by large ones for ever.  A wish that the fleet could not fulfil even if all
    of it were free (`possible`) keeps nothing.
    """
    free = {node.id: node for node in nodes if well(node, now, fresh)}
    given = []
    for lease in line:
        if not free:
            break
        chosen = place(lease.wish, free.values(), now, fresh)
        if chosen is not None:
            given.append((lease, chosen))
            kept = [node.id for node in chosen]
        else:
            kept = [key for key, node in free.items() if suits(node, lease.wish)]
            if kept and not possible(lease.wish):
                kept = []
        for key in kept:
            del free[key]
    return given


def overtakes(wish: Wish, nodes: Iterable[Node], waiting: Iterable[Lease]) -> bool:
    """Whether to take these nodes for a new wish now would pass by somebody who waits for them.

    A wish of higher priority than theirs may.
    """
    rivals = [lease for lease in waiting if lease.wish.priority >= wish.priority]
    return any(suits(node, lease.wish) for node in nodes for lease in rivals)


def eta(
    line: Sequence[Lease], lease_id: str, held: Iterable[Lease], free: int, now: int
) -> int | None:
    """When a waiting lease will have its machines if nobody extends or leaves early, or None.

    Honest rather than hopeful: it assumes that every machine serves every wish, that all leases
    last to their end, and that those before it in line last as long as they asked for.
    """
    ends = [(lease.expires_at or now, len(lease.nodes)) for lease in held if _counts(lease)]
    heapq.heapify(ends)
    for lease in line:
        while free < lease.wish.count:
            if not ends:
                return None
            end, machines = heapq.heappop(ends)
            now = max(now, end)
            free += machines
        free -= lease.wish.count
        if lease.id == lease_id:
            return now
        heapq.heappush(ends, (now + lease.wish.seconds * 1000, lease.wish.count))
    return None


def _counts(lease: Lease) -> bool:
    return lease.state.open and lease.state is not LeaseState.QUEUED and bool(lease.nodes)
