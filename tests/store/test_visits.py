from __future__ import annotations

import pytest
import sqlalchemy as sa

from essaim.model.fleet import Wish
from essaim.store.schema import visit as visit_table
from usecases.plane import KEY, Plane


@pytest.fixture
def plane(database) -> Plane:
    return Plane(database)


def test_a_visit_is_its_leases_owners_and_counts_bytes(plane):  # R-D4
    node, ann = plane.ready("one"), plane.user("ann")
    lease = plane.leases.rent(ann.id, Wish(), KEY)
    key = plane.visits.opened(lease=lease.id, node=node.id, client="192.0.2.7", key="SHA256:x")
    (seen,) = plane.visits.list(lease=lease.id)
    assert (seen.id, seen.user, seen.node, seen.client) == (key, ann.id, node.id, "192.0.2.7")
    assert (seen.key, seen.closed_at, seen.refused) == ("SHA256:x", None, "")
    plane.visits.closed(key, 17, 2**40)
    plane.visits.closed(key, 0, 0)
    (seen,) = plane.visits.list(user=ann.id)
    assert (seen.bytes_in, seen.bytes_out) == (17, 2**40)
    assert seen.closed_at >= seen.opened_at


def test_a_refused_visit_is_over_at_once(plane):  # R-D4
    plane.visits.opened(
        lease="l-nobodys", node="", client="192.0.2.7", key="", refused="no such lease"
    )
    (seen,) = plane.visits.list()
    assert (seen.user, seen.refused, seen.closed_at) == ("", "no such lease", seen.opened_at)


def test_visits_are_listed_newest_first_and_forgotten(plane):
    keys = [
        plane.visits.opened(lease="l-aaaa", node="n-1", client=str(n), key="") for n in range(3)
    ]
    for number, key in enumerate(keys):
        at = 1000 * (number + 1)
        its = sa.update(visit_table).where(visit_table.c.id == key).values(opened_at=at)
        plane.database.write(lambda c, its=its: c.execute(its))
    assert [each.id for each in plane.visits.list(limit=2)] == keys[:0:-1]
    plane.visits.opened(lease="l-aaaa", node="n-1", client="new", key="")
    assert plane.visits.prune(3600) == 3
    assert [each.client for each in plane.visits.list()] == ["new"]
