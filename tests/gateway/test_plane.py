"""What the gateway is told comes from the store, at each moment.  R-D5.  On every database."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from essaim.gateway.hub import public_data
from essaim.gateway.plane import PlaneRoutes
from essaim.gateway.routes import SessionStart, split
from essaim.model.errors import SetupError
from essaim.model.fleet import LeaseState, NodeState, Wish
from essaim.store.schema import lease as lease_table
from usecases.plane import KEY, Plane


class Here:
    """A control plane whose leases the gateway asks about."""

    def __init__(self, database) -> None:
        self.plane = Plane(database)
        self.routes = PlaneRoutes(self.plane)
        self.ann = self.plane.user("ann")

    def rent(self, count: int = 1):
        """A lease that is being prepared."""
        lease = self.plane.leases.rent(self.ann.id, Wish(count=count), KEY)
        assert lease.state is LeaseState.GRANTED
        return lease

    def active(self, count: int = 1):
        lease = self.rent(count)
        assert self.plane.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.GRANTED])
        return self.plane.leases.get(lease.id)

    def visits(self):
        return self.plane.visits.list()


@pytest.fixture
def here(database) -> Here:
    return Here(database)


def test_an_active_lease_leads_to_its_machine(here):
    node = here.plane.ready("one", address="192.0.2.7", port=2022)
    lease = here.active()
    route = here.routes.lease(lease.account)
    assert (route.account, route.node) == (lease.account, node.id)
    assert (route.address, route.port, route.tunnel) == ("192.0.2.7", 2022, False)
    assert route.host_key == node.host_key
    assert len(public_data(route.keys)) == 1
    assert route.expires_at == lease.expires_at / 1000
    assert route.forwarding


def test_a_machine_that_cannot_be_dialled_is_reached_through_its_tunnel(here):
    """R-D1."""
    here.plane.ready("hidden", address="", tunnel=True)
    assert here.routes.lease(here.active().account).tunnel


def test_nobody_else_has_a_lease_of_that_name(here):
    here.plane.ready("one")
    here.active()
    assert here.routes.lease("l-nobody00") is None
    assert here.routes.lease("") is None
    assert here.routes.lease("l-nobody00.2") is None


def test_a_lease_that_is_being_prepared_is_waited_for(here):
    here.plane.ready("one")
    lease = here.rent()
    route = here.routes.lease(lease.account)
    assert (route.node, route.waits) == ("", "preparing")


def test_a_lease_that_waits_in_the_queue_leads_nowhere(here):
    lease = here.plane.leases.rent(here.ann.id, Wish(), KEY)
    assert lease.state is LeaseState.QUEUED
    assert here.routes.lease(lease.account) is None


def test_a_lease_is_closed_while_it_moves_and_leads_to_the_new_machine_then(here):
    old = here.plane.ready("one")
    lease = here.active()
    new = here.plane.ready("two")
    here.plane.leases.migrate(lease.id, old.id, reason="lost")
    route = here.routes.lease(lease.account)
    assert (route.node, route.waits) == ("", "moving")
    assert here.plane.leases.spare(lease.id).id == new.id
    here.plane.leases.switch(lease.id, old.id, new.id)
    here.plane.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.MIGRATING])
    route = here.routes.lease(lease.account)
    assert (route.node, route.host_key) == (new.id, new.host_key)


def test_the_other_machines_of_a_lease_go_on_while_one_is_replaced(here):
    for name in ("one", "two"):
        here.plane.ready(name)
    lease = here.active(2)
    here.plane.leases.migrate(lease.id, lease.nodes[1], reason="lost")
    assert here.routes.lease(lease.account).node == lease.nodes[0]
    assert here.routes.lease(f"{lease.account}.2").node == ""


def test_each_machine_of_a_lease_has_a_name(here):
    for name in ("one", "two", "three"):
        here.plane.ready(name)
    lease = here.active(3)
    names = [lease.account, *(f"{lease.account}.{number}" for number in (1, 2, 3))]
    routes = [here.routes.lease(name) for name in names]
    assert [route.node for route in routes] == [lease.nodes[0], *lease.nodes]
    assert {route.account for route in routes} == {lease.account}
    for wrong in ("4", "9", "0", "-1", "02", "2.1", "two", "", "99999", "٢"):
        assert here.routes.lease(f"{lease.account}.{wrong}") is None, wrong


@pytest.mark.parametrize("state", [LeaseState.ENDING, LeaseState.ENDED, LeaseState.FAILED])
def test_a_lease_that_is_over_leads_nowhere(here, state):
    here.plane.ready("one")
    lease = here.active()
    assert here.plane.leases.move(lease.id, state, of=[LeaseState.ACTIVE])
    assert here.routes.lease(lease.account) is None


def test_an_expired_lease_says_so_before_a_controller_has_ended_it(here):
    here.plane.ready("one")
    lease = here.active()
    change = sa.update(lease_table).where(lease_table.c.id == lease.id)
    here.plane.database.write(lambda c: c.execute(change.values(expires_at=1000)))
    assert here.routes.lease(lease.account).expires_at < time.time()


def test_a_disabled_owner_is_let_in_no_more(here):
    here.plane.ready("one")
    lease = here.active()
    here.plane.people.change("ann", {"disabled": True})
    assert here.routes.lease(lease.account) is None
    here.plane.people.change("ann", {"disabled": False})
    assert here.routes.lease(lease.account) is not None


def test_a_machine_that_is_no_longer_the_leases_is_not_led_to(here):
    node = here.plane.ready("one")
    lease = here.active()
    assert here.plane.fleet.move(node.id, NodeState.READY, of=[NodeState.HELD])
    assert here.plane.fleet.get(node.id).lease is None
    assert here.routes.lease(lease.account).node == ""


def test_a_tunnel_must_show_the_key_its_node_announced(here):
    node, _ = here.plane.join("hidden", tunnel=True, tunnel_key="ssh-ed25519 AAAA tunnel")
    assert here.routes.node_key(node.id) == "ssh-ed25519 AAAA tunnel"
    assert here.routes.node_key("n-nobody") is None


def test_forwarding_is_a_setting(here):
    here.plane.ready("one")
    lease = here.active()
    assert not PlaneRoutes(here.plane, forwarding="none").lease(lease.account).forwarding
    with pytest.raises(SetupError, match="ESSAIM_FORWARDING is 'all'") as raised:
        PlaneRoutes(here.plane, forwarding="all")
    assert "machine, none" in raised.value.hint


def came(lease, **changes):
    values = {"account": lease, "node": "", "client": "192.0.2.9", "key": "SHA256:x"}
    return SessionStart(started_at=time.time(), **{**values, **changes})


def test_visits_are_kept_with_their_end_and_size(here):
    """R-D4."""
    node = here.plane.ready("one")
    lease = here.active()
    key = here.routes.opened(came(lease.account, node=node.id))
    (visit,) = here.visits()
    assert (visit.lease, visit.user, visit.node) == (lease.id, here.ann.id, node.id)
    assert (visit.client, visit.key, visit.refused) == ("192.0.2.9", "SHA256:x", "")
    assert visit.closed_at is None
    here.routes.closed(key, 12, 345)
    (visit,) = here.visits()
    assert (visit.bytes_in, visit.bytes_out) == (12, 345)
    assert visit.closed_at >= visit.opened_at


def test_strangers_are_kept_if_there_is_such_a_lease_over_or_not(here):
    """R-D4."""
    here.plane.ready("one")
    lease = here.active()
    here.routes.turned_away(came(lease.account, refused="no key"))
    here.routes.turned_away(came("l-nobody00", refused="no key"))
    here.plane.leases.move(lease.id, LeaseState.ENDED, of=[LeaseState.ACTIVE])
    here.routes.turned_away(came(lease.account, refused="no key"))
    assert [(each.lease, each.refused) for each in here.visits()] == [(lease.id, "no key")] * 2
    assert all(each.closed_at for each in here.visits())


def test_names_are_taken_apart():
    assert split("l-abcd") == ("l-abcd", 1)
    assert split("l-abcd.12") == ("l-abcd", 12)
    for whole in ("l-abcd.0", "l-abcd.", ".2", "l-abcd.02", "l-abcd.10000", "a.b.2", "l-a.٢"):
        assert split(whole) == (whole, 1), whole
