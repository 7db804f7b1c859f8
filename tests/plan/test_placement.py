"""Which nodes a wish gets: all of it or nothing, and only nodes that are well."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from essaim.model.fleet import NodeState, Wish
from essaim.plan.placement import fits, place, suits, well
from plan import fleets
from plan.fleets import NOW, nodes, wishes

FRESH = 45.0


@given(nodes(), wishes())
def test_all_of_a_wish_or_nothing(fleet, wish):
    chosen = place(wish, fleet, NOW, FRESH)
    able = [node for node in fleet if fits(node, wish, NOW, FRESH)]
    if chosen is None:
        assert len(able) < wish.count
    else:
        assert len({node.id for node in chosen}) == wish.count
        assert all(node in able for node in chosen)


@given(nodes(), wishes())
def test_only_nodes_seen_well_a_moment_ago(fleet, wish):
    for node in place(wish, fleet, NOW, FRESH) or ():
        assert node.state is NodeState.READY
        assert not node.drained
        assert node.failures == 0
        assert NOW - node.beat_at <= 45_000


@given(nodes(), wishes())
def test_nothing_smaller_that_fits_is_left(fleet, wish):
    chosen = place(wish, fleet, NOW, FRESH) or ()
    left = [n for n in fleet if fits(n, wish, NOW, FRESH) and n not in chosen]
    for node in chosen:
        assert all((node.cores, node.memory) <= (other.cores, other.memory) for other in left)


@given(nodes(), wishes(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_change_what_kind_is_chosen(fleet, wish, random):
    shuffled = random.sample(fleet, len(fleet))
    kinds = [
        None if found is None else [(n.cores, n.memory, int(n.load)) for n in found]
        for found in (place(wish, fleet, NOW, FRESH), place(wish, shuffled, NOW, FRESH))
    ]
    assert kinds[0] == kinds[1]


@given(nodes(), wishes())
def test_fitting_is_suiting_and_being_well(fleet, wish):
    for node in fleet:
        assert fits(node, wish, NOW, FRESH) == (suits(node, wish) and well(node, NOW, FRESH))


def test_equals_are_taken_in_the_order_given_but_the_idlest_first():
    first, second, busy = fleets.well(3)
    busy = replace(busy, load=3.0)
    assert place(Wish(), [busy, second, first], NOW, FRESH) == (second,)
    assert place(Wish(), [busy, first, second], NOW, FRESH) == (first,)


def test_labels_and_site_must_match():
    node = replace(fleets.well(1)[0], labels={"gpu": "a"}, site="north")
    assert suits(node, Wish(labels={"gpu": "a"}, site="north"))
    assert not suits(node, Wish(labels={"gpu": "b"}))
    assert not suits(node, Wish(labels={"disk": "a"}))
    assert not suits(node, Wish(site="south"))
