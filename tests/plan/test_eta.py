"""Estimates come from what was measured before."""

from __future__ import annotations

from essaim.model.plans import Action, Change, World
from essaim.plan.diff import diff
from essaim.plan.eta import WIDTH, estimate
from plan.worlds import cluster


def test_nothing_known_gives_no_estimate():
    assert estimate(diff(cluster(2), World()), {}) is None


def test_the_longest_chain_counts_when_there_is_room_beside_it():
    durations = {
        ("build", "build"): [20.0],
        ("raise", "create"): [1.0, 1.0, 100.0],
        ("raise", "start"): [0.5],
        ("configure", "put"): [2.0],
    }
    # build, raise, base, controller, then the nodes' own role
    assert estimate(diff(cluster(2), World()), durations) == 20 + 1.5 + 2 + 2 + 2


def test_the_sum_counts_when_there_is_not():
    many = [Change(key=str(n), action=Action.ADD, verb="raise") for n in range(WIDTH * 10)]
    assert estimate(many, {("raise", "create"): [2.0]}) == 20.0
