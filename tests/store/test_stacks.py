from __future__ import annotations

import pytest

from essaim.model.plans import Applied
from essaim.store.stacks import Stacks


@pytest.fixture
def stacks(database) -> Stacks:
    return Stacks(database)


def role(machine: str, name: str = "base", digest: str = "d1") -> Applied:
    return Applied(machine=machine, role=name, digest=digest, needs="n", boot="b")


def test_stacks_are_put_got_and_listed(stacks):
    assert stacks.get_stack("x") is None
    stacks.put_stack("x", {"size": 1})
    stacks.put_stack("x", {"size": 2, "label": "naïve ☃"})
    stacks.put_stack("w", {})
    assert stacks.get_stack("x") == {"size": 2, "label": "naïve ☃"}
    assert stacks.list_stacks() == ["w", "x"]


def test_large_bodies_fit(stacks):
    body = {"text": "x" * 1_000_000}
    stacks.put_stack("x", body)
    assert stacks.get_stack("x") == body


def test_applied_roles_are_those_of_the_stack_alone(stacks):
    stacks.record_applied(role("x/a"), role("x/a", "web"), role("x-y/a"), role("x0/a"), role("w/a"))
    stacks.record_applied(role("x/a", digest="d2"))
    found = stacks.applied("x")
    assert set(found) == {("x/a", "base"), ("x/a", "web")}
    assert found["x/a", "base"] == role("x/a", digest="d2")


def test_forgetting_a_machine_forgets_its_roles(stacks):
    stacks.put_machine("x/a", "x", {"n": 1})
    stacks.put_machine("x/b", "x", {"n": 2})
    stacks.record_applied(role("x/a"), role("x/b"))
    stacks.forget_machine("x/a")
    stacks.forget_machine("x/a")
    assert stacks.machines("x") == {"x/b": {"n": 2}}
    assert stacks.get_machine("x/a") is None
    assert set(stacks.applied("x")) == {("x/b", "base")}


def test_dropping_a_stack_leaves_nothing_of_it(stacks):
    for name in ("x", "y"):
        stacks.put_stack(name, {})
        stacks.put_machine(f"{name}/a", name, {})
        stacks.record_applied(role(f"{name}/a"))
    stacks.drop_stack("x")
    stacks.drop_stack("x")
    assert stacks.list_stacks() == ["y"]
    assert (stacks.machines("x"), stacks.applied("x")) == ({}, {})
    assert (len(stacks.machines("y")), len(stacks.applied("y"))) == (1, 1)
    stacks.forget_machines("y")
    assert (stacks.machines("y"), stacks.applied("y")) == ({}, {})


def test_a_plan_never_changes(stacks):
    stacks.put_plan("p1", "x", {"changes": [1]})
    stacks.put_plan("p1", "x", {"changes": [2]})
    assert stacks.get_plan("p1") == {"changes": [1]}
    assert stacks.get_plan("p2") is None
    assert stacks.prune_plans(older_than=3600) == 0
    assert stacks.prune_plans(older_than=-1) == 1
