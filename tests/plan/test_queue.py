"""Who is next, and when."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from essaim.model.fleet import LeaseState, Wish
from essaim.plan.placement import fits, suits
from essaim.plan.queue import allot, eta, line_up, overtakes
from plan.fleets import NOW, lines, nodes, waiting, well, wishes

FRESH = 45.0
HELD = st.dictionaries(st.sampled_from("abc"), st.integers(0, 5))


def everything(_wish) -> bool:
    return True


@given(lines(), HELD)
def test_everybody_is_in_the_line_once(queue, held):
    line = line_up(queue, held)
    assert sorted(lease.id for lease in line) == sorted(lease.id for lease in queue)


@given(lines(), HELD)
def test_priority_comes_first_and_then_who_has_least(queue, held):
    line = line_up(queue, held)
    assert [x.wish.priority for x in line] == sorted((x.wish.priority for x in line), reverse=True)
    has = Counter(held)
    for index, lease in enumerate(line):
        rivals = [x for x in line[index:] if x.wish.priority == lease.wish.priority]
        assert has[lease.user] == min(has[x.user] for x in rivals)
        has[lease.user] += lease.wish.count


@given(lines(), HELD)
def test_one_persons_leases_of_one_priority_keep_their_order(queue, held):
    line = line_up(queue, held)
    for user in "abc":
        for priority in (0, 5):
            theirs = [x for x in line if (x.user, x.wish.priority) == (user, priority)]
            assert theirs == sorted(theirs, key=lambda x: (x.asked_at, x.id))


@given(lines(), HELD, st.randoms(use_true_random=False))
def test_the_line_does_not_depend_on_how_the_store_lists_it(queue, held, random):
    assert line_up(random.sample(queue, len(queue)), held) == line_up(queue, held)


def test_nobody_waits_behind_anothers_hundred():
    many = [waiting(f"l-{n:03}", "a", Wish(), n) for n in range(100)]
    late = waiting("l-late", "b", Wish(), 1000)
    assert line_up([*many, late], {}).index(late) == 1
    assert line_up([*many, late], {"a": 1})[0] == late


def test_what_a_priority_brought_counts_afterwards():
    urgent = waiting("l-1", "a", Wish(priority=5), 0)
    later = waiting("l-2", "a", Wish(), 1)
    other = waiting("l-3", "b", Wish(), 2)
    assert line_up([urgent, later, other], {}) == [urgent, other, later]


@given(lines(), nodes(), HELD)
def test_nodes_are_given_once_and_only_to_wishes_they_fit(queue, fleet, held):
    given_out = Counter()
    for lease, chosen in allot(line_up(queue, held), fleet, NOW, FRESH, everything):
        assert len(chosen) == lease.wish.count
        assert all(fits(node, lease.wish, NOW, FRESH) for node in chosen)
        given_out.update(node.id for node in chosen)
    assert all(count == 1 for count in given_out.values())


@given(lines(), nodes(), HELD)
def test_nobody_is_overtaken(queue, fleet, held):
    """Who gets nothing would find nothing better even if all behind them were sent away."""
    line = line_up(queue, held)
    served = {lease.id for lease, _ in allot(line, fleet, NOW, FRESH, everything)}
    for index in range(len(line)):
        alone = {lease.id for lease, _ in allot(line[: index + 1], fleet, NOW, FRESH, everything)}
        assert (line[index].id in served) == (line[index].id in alone)


@given(lines(), nodes())
def test_who_waits_keeps_what_would_do_for_them(queue, fleet):
    line = line_up(queue, {})
    plan = {lease.id: chosen for lease, chosen in allot(line, fleet, NOW, FRESH, everything)}
    for index, lease in enumerate(line):
        if lease.id in plan:
            continue
        for later in line[index + 1 :]:
            assert not any(suits(node, lease.wish) for node in plan.get(later.id, ()))


def test_a_wish_that_can_never_be_fulfilled_blocks_nobody():
    impossible = waiting("l-1", "a", Wish(count=9), 0)
    small = waiting("l-2", "b", Wish(), 1)
    line = [impossible, small]
    assert [x.id for x, _ in allot(line, well(3), NOW, FRESH, lambda wish: wish.count <= 3)] == [
        "l-2"
    ]
    assert allot(line, well(3), NOW, FRESH, everything) == []


def test_a_newcomer_overtakes_only_who_waits_for_the_same_kind():
    waits = [waiting("l-1", "a", Wish(labels={"gpu": "a"}))]
    assert not overtakes(Wish(), well(1), waits)
    assert overtakes(Wish(), well(1, labels={"gpu": "a"}), waits)
    assert not overtakes(Wish(priority=1), well(1, labels={"gpu": "a"}), waits)
    assert not overtakes(Wish(), well(1), [])


def busy(key: str, machines: int, until: int):
    names = tuple(f"{key}-{n}" for n in range(machines))
    lease = waiting(key, "z", Wish(count=machines))
    return replace(lease, state=LeaseState.ACTIVE, nodes=names, expires_at=until)


def test_the_estimate_follows_the_leases_that_end():
    line = [
        waiting("l-1", "a", Wish(count=2, seconds=100)),
        waiting("l-2", "b", Wish(count=1, seconds=100)),
        waiting("l-3", "c", Wish(count=3, seconds=100)),
    ]
    held = [busy("x", 1, NOW + 1000), busy("y", 1, NOW + 5000), busy("z", 1, NOW + 9000)]
    assert eta(line, "l-1", held, 0, NOW) == NOW + 5000
    assert eta(line, "l-2", held, 0, NOW) == NOW + 9000
    assert eta(line, "l-3", held, 0, NOW) == NOW + 9000 + 100_000
    assert eta(line, "l-1", held, 2, NOW) == NOW
    assert eta(line, "l-1", [], 0, NOW) is None
    assert eta(line, "nobody", held, 9, NOW) is None


def test_an_overdue_lease_does_not_promise_the_past():
    assert eta([waiting("l-1", "a", Wish())], "l-1", [busy("x", 1, NOW - 5000)], 0, NOW) == NOW


@given(
    lines(),
    st.lists(st.tuples(st.integers(1, 3), st.integers(-9, 9999)), max_size=5),
    st.integers(0, 3),
)
def test_estimates_never_lie_in_the_past_nor_go_backwards_along_the_line(queue, ends, free):
    line = line_up(queue, {})
    held = [busy(f"h{n}", machines, NOW + ms) for n, (machines, ms) in enumerate(ends)]
    estimates = [eta(line, lease.id, held, free, NOW) for lease in line]
    known = [when for when in estimates if when is not None]
    assert all(when >= NOW for when in known)
    assert known == sorted(known)
    assert None not in estimates[: len(known)]


@given(wishes())
def test_a_wish_alone_overtakes_nobody(wish):
    assert not overtakes(wish, well(3), [])
