"""The planner's laws (R-A1, R-C1)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essaim.model.errors import InvalidError
from essaim.model.machines import Power
from essaim.model.plans import Drift, Plan, World
from essaim.plan.diff import diff, dismantle
from essaim.plan.digest import world_fingerprint
from essaim.plan.serial import plan_from_json, plan_to_json
from plan.worlds import ROLES, cluster, obey, worlds


def settled(nodes: int) -> World:
    stack = cluster(nodes)
    return obey(stack, World(), diff(stack, World()))


@given(worlds(), st.integers(0, 6))
def test_carrying_out_a_plan_leaves_nothing_to_change(world, nodes):
    stack = cluster(nodes)
    after = obey(stack, world, diff(stack, world))
    assert diff(stack, after) == ()


@given(worlds(), st.integers(0, 6))
def test_every_wait_names_an_earlier_change_and_keys_are_unique(world, nodes):
    seen = set()
    for change in diff(cluster(nodes), world):
        assert set(change.waits) <= seen
        assert change.key not in seen
        seen.add(change.key)


@given(worlds(), st.integers(0, 6))
def test_only_wanted_machines_are_left(world, nodes):
    stack = cluster(nodes)
    after = obey(stack, world, diff(stack, world))
    assert set(after.machines) == {str(machine.name) for machine in stack.machines}
    assert all(seen.power is Power.ON for seen in after.machines.values())


@given(worlds())
def test_dismantling_leaves_nothing(world):
    after = obey(cluster(0), world, dismantle("lab", world))
    assert (after.machines, after.network) == ({}, None)


def test_growing_adds_machines_and_changes_only_who_knows_the_members():
    changes = diff(cluster(6), settled(4))
    added = [c.machine for c in changes if c.verb == "raise"]
    assert added == ["lab/nodes-5", "lab/nodes-6"]
    changed = [(c.machine, c.role, c.reason) for c in changes if c.action.value == "~"]
    assert changed == [("lab/controller", "controller", "members changed")]


def test_shrinking_drains_before_the_controller_forgets_and_touches_no_other_node():
    changes = {c.key: c for c in diff(cluster(3), settled(6))}
    assert set(changes) == {"nodes-4", "nodes-5", "nodes-6", "controller.controller"}
    assert set(changes["controller.controller"].waits) == {"nodes-4", "nodes-5", "nodes-6"}


def test_an_adopted_machine_is_given_back_and_costs_nobody_a_disk():
    stack, world = cluster(3), settled(3)
    name = str(stack.machines[-1].name)
    theirs = replace(world.machines[name], adopted=True)
    world = replace(world, machines={**world.machines, name: theirs})
    for changes in (dismantle(stack.name, world), diff(cluster(2), world)):
        (gone,) = [change for change in changes if change.machine == name]
        assert gone.gives_back
        assert not gone.destroys_disk
        assert gone.reason == "given back as it is: it was adopted"
    other = replace(world, machines={**world.machines, name: replace(theirs, image="x")})
    (made,) = [c for c in diff(stack, other) if c.machine == name and c.verb == "rebuild"]
    assert not made.destroys_disk
    assert made.reason.endswith("; the adopted one is given back")
    plan = Plan(stack="lab", changes=(made,), world="w", wanted="v")
    assert plan_from_json(plan_to_json(plan)) == plan
    plain = replace(made, gives_back=False)
    body = plan_to_json(replace(plan, changes=(plain,)))
    assert "gives_back" not in body["changes"][0]  # earlier versions read such plans
    assert plain.destroys_disk


def test_nodes_wait_for_the_controller_but_machines_do_not():
    changes = {c.key: c for c in diff(cluster(2), World())}
    assert changes["nodes-1"].waits == ("image-debian",)
    assert changes["nodes-1.node"].waits == ("nodes-1", "nodes-1.base", "controller.controller")
    assert "controller.controller" not in changes["nodes-1.base"].waits


def test_a_group_that_comes_after_another_waits_for_all_of_it():
    stack = cluster(3)
    machines = [
        replace(m, after=("nodes",)) if m.group == "controller" else replace(m, roles=("base",))
        for m in stack.machines
    ]
    changes = {c.key: c for c in diff(replace(stack, machines=tuple(machines)), World())}
    assert changes["gate-nodes"].waits == ("nodes-1.base", "nodes-2.base", "nodes-3.base")
    assert "gate-nodes" in changes["controller.base"].waits


def test_an_order_that_bites_its_tail_is_refused():
    stack = cluster(1)
    machines = [
        replace(m, after=("nodes",)) if m.group == "controller" else m for m in stack.machines
    ]
    with pytest.raises(InvalidError, match="cyclic order"):
        diff(replace(stack, machines=tuple(machines)), World())


@pytest.mark.parametrize(
    ("change", "verb", "reason"),
    [
        ({"power": Power.OFF}, "start", "is off"),
        ({"image": "old"}, "rebuild", "image debian changed"),
        ({"address": "10.77.0.99"}, "rebuild", "address moves from 10.77.0.99 to 10.77.0.11"),
        ({"shared": ("/home",)}, "rebuild", "shares no folders with the others"),
    ],
)
def test_a_machine_that_differs_says_why(change, verb, reason):
    world = settled(1)
    seen = {**world.machines}
    seen["lab/nodes-1"] = replace(seen["lab/nodes-1"], **change)
    changes = diff(cluster(1), replace(world, machines=seen))
    assert [(c.verb, c.reason) for c in changes if not c.role] == [(verb, reason)]
    assert {c.role for c in changes if c.role} == {"base", "node"}


def test_a_restarted_machine_gets_its_roles_again():
    world = settled(1)
    seen = {**world.machines}
    seen["lab/nodes-1"] = replace(seen["lab/nodes-1"], boot="another")
    changes = diff(cluster(1), replace(world, machines=seen))
    assert [(c.machine, c.role, c.reason) for c in changes] == [
        ("lab/nodes-1", "base", "machine has restarted since"),
        ("lab/nodes-1", "node", "machine has restarted since"),
    ]


def test_changed_files_and_variables_are_told_apart():
    stack = cluster(1)
    files = replace(stack, roles={**ROLES, "node": replace(ROLES["node"], digest="e" * 64)})
    assert [c.reason for c in diff(files, settled(1))] == ["its files changed"]
    variables = replace(stack, vars={"node": {"speed": 2}})
    assert [c.reason for c in diff(variables, settled(1))] == ["its variables changed"]


@given(worlds(), st.integers(0, 4))
def test_a_plan_survives_the_store(world, nodes):
    from essaim.model.plans import Plan

    plan = Plan(stack="lab", changes=diff(cluster(nodes), world), world="w", wanted="x")
    assert plan_from_json(plan_to_json(plan)) == plan


@given(worlds(), worlds())
def test_worlds_with_one_fingerprint_give_one_plan(one, other):
    if world_fingerprint(one) == world_fingerprint(other) and one.images == other.images:
        assert diff(cluster(3), one) == diff(cluster(3), other)


def test_the_fingerprint_moves_with_power_boot_and_roles():
    world = settled(1)
    prints = {world_fingerprint(world), world_fingerprint(replace(world, applied={}))}
    for change in ({"power": Power.OFF}, {"boot": "x"}, {"image": "y"}):
        seen = {**world.machines}
        seen["lab/nodes-1"] = replace(seen["lab/nodes-1"], **change)
        prints.add(world_fingerprint(replace(world, machines=seen)))
    assert len(prints) == 5


def test_work_grows_linearly_with_the_machines():
    """Counted in calls, not seconds, so that a busy computer cannot fail it."""
    import cProfile
    import pstats

    def calls(nodes: int) -> int:
        stack = cluster(nodes)
        profile = cProfile.Profile()
        profile.runcall(diff, stack, World())
        return pstats.Stats(profile).total_calls

    assert calls(2000) < 2.2 * calls(1000)


def test_roles_can_be_applied_again_at_will():
    changes = diff(cluster(1), settled(1), again=True)
    assert [(c.key, c.reason) for c in changes] == [
        (f"{machine}.{role}", "asked for again")
        for machine, role in (
            ("controller", "base"),
            ("controller", "controller"),
            ("nodes-1", "base"),
            ("nodes-1", "node"),
        )
    ]


def test_internet_access_opens_and_closes_and_touches_no_machine():
    world, stack = settled(1), cluster(1)
    opened = replace(stack, network=replace(stack.network, internet=True))
    (change,) = diff(opened, world)
    assert (change.verb, change.reason) == ("open", "internet access opens")
    after = obey(opened, world, (change,))
    assert diff(opened, after) == ()
    assert world_fingerprint(after) != world_fingerprint(world)
    (change,) = diff(stack, after)
    assert (change.verb, change.reason) == ("open", "internet access closes")


def test_roles_that_drifted_are_applied_again_and_no_others():
    world, stack = settled(2), cluster(2)
    drift = {("lab/nodes-2", "node"): Drift(reason="not ready: exit 1", detail="a diff\n")}
    (change,) = diff(stack, world, drift=drift)
    assert (change.machine, change.role) == ("lab/nodes-2", "node")
    assert (change.reason, change.detail) == ("not ready: exit 1", "a diff\n")
    plan = Plan(stack="lab", changes=(change,), world="", wanted="")
    assert plan_from_json(plan_to_json(plan)) == plan
    plain = replace(plan, changes=(replace(change, detail=""),))
    assert "detail" not in plan_to_json(plain)["changes"][0], "as an earlier version expects it"
