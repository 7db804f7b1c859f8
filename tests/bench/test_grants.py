"""Leases are really granted by a real server, and a peer that cannot be had is said."""

from __future__ import annotations

import os

import pytest
import sqlalchemy as sa

from essaim.bootstrap import cache_home
from essaim.model.fleet import Wish
from essaim.store.leases import Leases
from essaim.store.people import People
from essaim.store.schema import lease
from essaim_lab.bench import duffy, grants, seeding, services
from essaim_lab.bench.load import Answer
from essaim_lab.bench.rows import CannotRunError, table

FOUND = {
    "rate": 100.0, "granted": 20, "failed": 0, "p50": 0.1, "p99": 0.2, "seconds": 0.2,
    "failures": {}, "clients": 50, "doubles": 0, "cpu": 5.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def where():
    try:
        with services.postgresql() as found:
            yield found
    except CannotRunError as error:
        pytest.skip(str(error))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("plain", "again"), [(False, False), (True, True)])
def test_every_grant_holds_a_node_of_its_own(where, plain, again):
    """R-D2: three clients, twelve nodes."""
    found = grants.essaim(where, 12, 3, 600.0, plain=plain, again=again)
    assert (found["granted"], found["failed"], found["doubles"]) == (12, 0, 0)
    assert found["clients"] == 3
    assert found["cpu"] > 0
    assert found["rate"] > 0


def test_what_is_asked_beyond_the_nodes_is_no_grant():
    queued = Answer(202, {"state": "queued", "nodes": []}, 0.1)
    assert not grants.is_grant(queued)
    assert not grants.is_grant(Answer(0, "refused", 0.1))
    assert grants.is_grant(Answer(202, {"state": "granted", "nodes": ["n-1"]}, 0.1))


def test_doubles_are_seen(sqlite):
    seeding.people(sqlite, ["ada"], "no hash")
    seeding.nodes(sqlite, 3)
    leases = Leases(sqlite)
    person = People(sqlite).find("ada")[0]
    made = [leases.rent(person.id, Wish(), seeding.KEY) for _ in range(2)]
    ids = [each.id for each in made]
    assert seeding.doubles(sqlite, ids) == 0
    assert seeding.doubles(sqlite, [*ids, "l-missing1"]) == 1
    stolen = sa.update(lease).where(lease.c.id == ids[1]).values(nodes=f'["{made[0].nodes[0]}"]')
    sqlite.write(lambda c: c.execute(stolen))
    assert seeding.doubles(sqlite, ids) == 2  # one node given twice, one lease that has no node


def test_rows_compare_with_the_peer():
    peer = {**FOUND, "rate": 1.0, "failed": 7, "p99": 12.0}
    rows = list(grants.rows("as shipped", 2000, FOUND, peer, 50.0))
    assert [row.verdict for row in rows] == ["ok", "-", "ok", "-", "ok", "ok"]
    assert rows[0].ratio == 100
    assert rows[4].peer.value == 7
    assert "7 failed" in rows[0].peer.note


def test_a_peer_that_cannot_be_had_is_said():
    rows = list(grants.rows("as shipped", 2000, FOUND, "not measured: no root", 50.0))
    assert "not measured: no root" in table(rows)
    assert rows[0].ratio is None
    assert rows[0].verdict == "-"


def test_why_a_peer_is_missing_is_told(monkeypatch):
    def absent(*_words, **_named):
        raise CannotRunError("pip found no such version\n    trace")

    monkeypatch.setattr(duffy, "peer", absent)
    assert grants._peers(1, 1.0, plain=True) == "not measured: pip found no such version"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may have the peer")
def test_without_root_the_peer_says_what_it_needs(tmp_path):
    with pytest.raises(CannotRunError, match="root"):
        duffy.peer(tmp_path, nodes=1, clients=[1], seconds=1, plain=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="its namespaces need root")
@pytest.mark.timeout(900)
def test_the_peer_runs_with_its_ssh_made_free():
    cache = cache_home(os.environ)
    if not (cache / "bench" / f"duffy-{duffy.VERSION}" / "complete").exists():
        pytest.skip("it is installed by `make bench`")
    (found,) = duffy.peer(cache, nodes=4, clients=[2], seconds=600.0, plain=True)
    assert found["granted"] + found["failed"] == 4
    assert found["granted"] > 0
    assert found["doubles"] == 0
