"""Digests say what a role depends on, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from essaim.plan.digest import RoleDigests
from plan.worlds import cluster


def test_scaling_changes_the_digest_of_those_who_know_the_members_only():
    small, large = RoleDigests(cluster(2)), RoleDigests(cluster(3))
    controller, first, *_ = cluster(2).machines
    assert small.of(first, "node") == large.of(first, "node")
    assert small.of(controller, "controller") != large.of(controller, "controller")


def test_the_order_labels_are_written_in_does_not_matter():
    stack = cluster(1)
    one = replace(stack.machines[0], labels={"a": "1", "b": "2"})
    other = replace(stack.machines[0], labels={"b": "2", "a": "1"})
    digests = [
        RoleDigests(replace(stack, machines=(m, *stack.machines[1:]))).of(m, "controller")
        for m in (one, other)
    ]
    assert digests[0] == digests[1]


def test_words_for_differences():
    assert RoleDigests.differences("a:b:c:d", "a:x:c:y") == [
        "its variables changed",
        "members changed",
    ]
