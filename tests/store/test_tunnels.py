"""Where tunnels end is known to all, and what a dead gateway said is not believed."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from essaim.store.database import db_now
from essaim.store.schema import gateway
from essaim.store.tunnels import DEAD_AFTER, Door, Tunnels
from essaim.store.visits import Visits

ONE = Door(gateway="gateway-1", address="10.0.0.1", port=7001, public_host="a", public_port=22)
TWO = Door(gateway="gateway-2", address="10.0.0.2", port=7002)


@pytest.fixture
def tunnels(database):
    made = Tunnels(database)
    made.announce(ONE)
    made.announce(TWO)
    return made


def let_die(database, door: Door) -> None:
    past = db_now() - int(1000 * DEAD_AFTER) - 1
    put = sa.update(gateway).where(gateway.c.id == door.gateway).values(seen_at=past)
    database.write(lambda c: c.execute(put))


def test_the_newest_tunnel_is_the_way(tunnels):
    assert tunnels.find("n-1") is None
    tunnels.came("n-1", ONE)
    assert tunnels.find("n-1") == ONE
    tunnels.came("n-1", TWO)
    tunnels.went("n-1", ONE.gateway)  # comes late: the other one's stays
    assert tunnels.find("n-1") == TWO
    tunnels.went("n-1", TWO.gateway)
    assert tunnels.find("n-1") is None


def test_what_was_missed_is_set_right_by_a_beat(tunnels, database):
    tunnels.came("n-gone", ONE)
    tunnels.came("n-theirs", TWO)
    tunnels.hold(ONE, ["n-new", "n-theirs"])
    assert tunnels.find("n-gone") is None
    assert tunnels.find("n-new") == ONE
    assert tunnels.find("n-theirs") == TWO  # it lives: there it came later
    let_die(database, TWO)
    tunnels.hold(ONE, ["n-new", "n-theirs"])
    assert tunnels.find("n-theirs") == ONE


def test_a_dead_gateway_leads_nowhere_and_is_forgotten(tunnels, database):
    tunnels.came("n-1", ONE)
    let_die(database, ONE)
    assert tunnels.find("n-1") is None
    assert tunnels.alive() == [TWO]
    tunnels.prune()
    tunnels.announce(ONE)  # it was only slow, and is back
    assert tunnels.find("n-1") is None
    tunnels.hold(ONE, ["n-1"])
    assert tunnels.find("n-1") == ONE
    tunnels.leave(ONE.gateway)
    assert tunnels.alive() == [TWO]
    assert tunnels.find("n-1") is None


def test_visits_of_dead_gateways_are_closed_and_no_others(tunnels, database):
    visits = Visits(database)
    came = {"lease": "l-1", "node": "n-1", "client": "192.0.2.1", "key": "SHA256:x"}
    left = visits.opened(**came, through=ONE.gateway)
    visits.opened(**came, through=TWO.gateway)
    visits.opened(**came)
    let_die(database, ONE)
    assert visits.abandoned() == 1
    assert [visit.id for visit in visits.list() if visit.closed_at] == [left]
