"""A checker is worth what it finds: every promise broken on purpose."""

from __future__ import annotations

import json

from chaos import checks
from chaos.checks import Seen


def node(name: str, state: str = "ready", lease: str | None = None, reason: str = ""):
    return {"id": f"n-{name}", "name": name, "state": state, "lease": lease, "reason": reason}


def lease(name: str, *nodes: str, state: str = "active", key: str = "", expires: int = 1000):
    over = state in ("ended", "failed")
    return {
        "id": name,
        "request": key or f"key-{name}",
        "state": state,
        "nodes": json.dumps([f"n-{each}" for each in nodes]),
        "reason": "",
        "expires_at": expires,
        "ended_at": 5 if over else None,
    }


def run(state: str, error: str = ""):
    return {"id": "r", "state": state, "note": "", "error": error}


def rented(name: str, key: str = ""):
    return {"lease": name, "key": key or f"key-{name}"}


WELL = Seen(
    nodes=[node("a", "held", "l-1"), node("b")],
    leases=[lease("l-1", "a"), lease("l-0", "b", state="ended")],
    runs=[run("done"), run("stuck", "the disk is full")],
)


def test_nothing_is_found_where_all_is_well():
    assert checks.two_holders(WELL) == []
    assert checks.two_accounts("a", {"l-1"}) == []
    assert checks.forgotten(WELL, [rented("l-1"), rented("l-0")], [{"lease": "l-0"}]) == []
    assert checks.shortened(WELL, [{"lease": "l-1", "until": 1000}]) == []
    assert checks.stuck(WELL) == []
    assert checks.residue(WELL, {"a": {"l-1"}, "b": set()}) == []
    assert checks.idle(WELL) == []


def test_a_machine_with_two_holders():
    seen = Seen(nodes=[node("a", "held", "l-1")], leases=[lease("l-1", "a"), lease("l-2", "a")])
    found = checks.two_holders(seen)
    assert "n-a has the holders ['l-1', 'l-2']" in found
    other = Seen(nodes=[node("a", "held", "l-9")], leases=[lease("l-1", "a")])
    assert checks.two_holders(other) == ["n-a says l-9, leases say ['l-1']"]
    assert checks.two_accounts("a", {"l-1", "l-2"}) == ["a has the accounts ['l-1', 'l-2']"]


def test_a_grant_that_is_forgotten_or_given_to_somebody_else():
    assert checks.forgotten(WELL, [rented("l-7")], []) == [
        "l-7 was granted for key-l-7 and is not there"
    ]
    assert "not key-l-1" in checks.forgotten(WELL, [rented("l-1", "k")], [])[0]
    assert "was not released" in checks.forgotten(WELL, [rented("l-0")], [])[0]
    assert "is active" in checks.forgotten(WELL, [rented("l-1")], [{"lease": "l-1"}])[0]
    twice = Seen(nodes=[], leases=[lease("l-1", key="k"), lease("l-2", key="k")])
    assert checks.forgotten(twice, [], []) == ["k was granted 2 times"]


def test_a_lease_that_ends_too_early():
    found = checks.shortened(WELL, [{"lease": "l-1", "until": 1001}])
    assert found == ["l-1 was extended until 1001 and ends at 1000"]


def test_a_run_that_nothing_moves():
    for state in ("ready", "running", "waiting"):
        assert checks.stuck(Seen(nodes=[], leases=[], runs=[run(state)]))
    assert checks.stuck(Seen(nodes=[], leases=[], runs=[run("stuck")])) == [
        "run r is stuck and does not say why"
    ]


def test_accounts_that_should_not_be_there_and_that_should():
    assert checks.residue(WELL, {"a": {"l-1"}, "b": {"l-0"}}) == [
        "b has ['l-0'], and should have []"
    ]
    assert checks.residue(WELL, {"a": set(), "b": set()}) == ["a has [], and should have ['l-1']"]
    assert checks.residue(WELL, {"a": {"l-1"}}) == ["b could not be asked"]


def test_what_has_not_come_to_rest():
    seen = Seen(
        nodes=[node("a", "lost", reason="silent")],
        leases=[lease("l-1", state="queued"), lease("l-2", state="ended")],
    )
    assert checks.idle(seen) == ["node a is lost (silent)", "lease l-1 is queued ()"]
