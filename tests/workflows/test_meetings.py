"""What happens when a lease's workflows meet: ended while it is made or moved, lost twice, …

All on real machines, and in `make test-all` on every database; no machine keeps an account that
nobody has.
"""

from __future__ import annotations

import pytest

from databases import KINDS
from essaim.model.fleet import LeaseState, NodeState
from patience import EVERYTHING
from workflows import fleet

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600),  # the first one may wait for an image
    pytest.mark.parametrize("kind", KINDS if EVERYTHING else ["mariadb"]),
]


@pytest.fixture
def world(rig, tmp_path):
    with fleet.world(tmp_path / "world") as made:
        yield made


def found(world) -> dict[str, list[str]]:
    return {name: lines for name, lines in world.workers.seen().items() if lines}


def states(world) -> list[str]:
    return sorted(node.state.value for node in world.fleet.list())


def rented(world, *names: str) -> None:
    world.ready(*names)
    world.rent()
    world.activate()
    world.forget_runs()


def cut_off(world) -> str:
    """The lease's machine no longer answers anybody."""
    (world.node_id,) = world.its_lease().nodes
    name = world.fleet.get(world.node_id).name
    world.cut_off.add(name)
    world.workers.remote.drop(world.lending.target(world.fleet.get(world.node_id)).name)
    return name


def test_a_lease_released_before_it_began_leaves_nothing(world):  # R-D4
    world.ready("one", "two")
    world.rent(count=2)
    world.leases.release(world.lease_id, reason="never mind")
    world.carry()
    assert world.its_lease().state is LeaseState.ENDED
    assert states(world) == ["ready", "ready"]
    assert found(world) == {}


def test_a_lease_released_while_it_waits_for_another_machine_ends(world):  # R-D5
    rented(world, "one")
    cut_off(world)
    world.lose_silently()
    world.work(until=lambda: "free machine" in world.notes())
    world.leases.release(world.lease_id, reason="enough")
    world.carry()
    assert world.its_lease().state is LeaseState.ENDED
    assert states(world) == ["lost"]
    assert world.fleet.get(world.node_id).lease is None


def test_a_lease_whose_time_is_over_before_a_machine_is_free_ends(world):  # R-D5
    rented(world, "one")
    cut_off(world)
    world.lose_silently()
    world.work(until=lambda: "free machine" in world.notes())
    world.sql("UPDATE lease SET expires_at = 1")
    assert [lease.id for lease in world.leases.expired()] == [world.lease_id]
    world.leases.release(world.lease_id, reason="its time is over")
    world.carry()
    assert world.its_lease().state is LeaseState.ENDED
    assert not world.leases.stranded()


@pytest.mark.parametrize("step", ["account", "restore", "switch"])
def test_a_lease_released_while_it_is_moved_leaves_nothing_on_the_new_machine(world, step):  # R-D4
    rented(world, "one", "two")
    world.lose()
    release = world.leases.release
    world.before("migrate", step, lambda: release(world.lease_id, reason="enough"))
    assert world.its_lease().state is LeaseState.ENDED
    assert found(world) == {}
    # The old machine was thought lost, but could be fenced.
    assert set(states(world)) <= {"ready", "lost"}
    assert all(node.lease is None for node in world.fleet.list())
    assert world.homes.leases() == []


def test_a_lost_machine_is_left_alone_and_fenced_at_the_latest_when_the_lease_ends(world):  # R-D4
    rented(world, "one", "two")
    name = cut_off(world)
    world.lose_silently()
    world.carry()
    lease = world.its_lease()
    assert lease.state is LeaseState.ACTIVE
    assert world.node_id not in lease.nodes
    assert f"account {lease.id}" in found(world)[name]
    world.cut_off.clear()  # it was only out of reach, and nobody has heard of its agent yet
    world.leases.release(lease.id, reason="enough")
    world.carry()
    assert found(world) == {}
    assert world.fleet.get(world.node_id).state is NodeState.LOST


def test_a_lease_that_is_extended_lasts_on_its_machines_too(world):  # R-D4
    rented(world, "one")
    (node,) = world.fleet.list()
    lease = world.leases.extend(world.lease_id, 7200)
    world.carry()
    (account,) = world.lending.helper.list(world.lending.target(node))
    assert account["expires_at"] == lease.expires_at // 1000


def test_a_migration_that_fails_is_begun_anew(world):  # R-D5
    rented(world, "one", "two")
    world.lose()
    old = world.its_lease().nodes
    world.before("migrate", "account", world.refuse)
    assert world.its_lease().state is LeaseState.ACTIVE
    assert world.its_lease().nodes == old
    assert [lost for _, lost in world.leases.stranded()] == list(old)
    assert "ready" in states(world)
    assert world.leases.migrate(world.lease_id, old[0])
    world.carry()
    assert world.its_lease().state is LeaseState.ACTIVE
    assert world.its_lease().nodes != old
    new = world.fleet.get(world.its_lease().nodes[0]).name
    assert "thesis precious" in found(world)[new]


def test_a_lease_that_loses_a_machine_while_it_is_made_gets_another(world):  # R-D5
    world.ready("one", "two", "three")
    world.rent(count=2)
    lost = world.its_lease().nodes[0]
    world.node_id = lost
    world.cut_off.add(world.fleet.get(lost).name)
    world.fleet.move(lost, NodeState.LOST, of=[NodeState.HELD])
    assert world.leases.migrate(world.lease_id, lost)
    world.carry()
    lease = world.its_lease()
    assert lease.state is LeaseState.ACTIVE
    assert lost not in lease.nodes
    have = {node.name for node in world.fleet.list(ids=lease.nodes)}
    assert {name for name in have if f"account {lease.id}" in found(world)[name]} == have


def test_a_home_that_is_refused_is_set_aside_and_told(world):  # R-D5
    rented(world, "one", "two")
    world.lose()
    for copy in (world.place / "homes").glob("*/0/*.tar.gz"):
        copy.write_bytes(copy.read_bytes()[:-20])
    world.carry()
    assert world.its_lease().state is LeaseState.ACTIVE
    told = [event for event in world.events.since(0) if event.urgent]
    assert ["could not be restored" in event.text for event in told] == [True]
    assert list((world.place / "homes").glob("*/*-unrestored"))


def test_a_machine_that_cannot_be_proven_clean_is_set_aside(world):  # R-D4
    rented(world, "one")
    (node,) = world.fleet.list()
    world.lending.accounts = Stubborn(world.lending.accounts)
    world.leases.release(world.lease_id, reason="enough")
    world.carry()
    assert world.fleet.get(node.id).state is NodeState.QUARANTINED
    assert f"account {world.lease_id}" in world.fleet.get(node.id).reason
    assert [event.kind for event in world.events.since(0) if event.urgent] == ["node.quarantined"]


class Stubborn:
    """Accounts that cannot be removed."""

    def __init__(self, real) -> None:
        self.verify = real.verify

    def remove(self, _target, _account, *, at) -> None:
        return
