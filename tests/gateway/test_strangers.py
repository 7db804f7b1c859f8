"""Who shows no right key is recorded, but no stranger can fill the record."""

from __future__ import annotations

from essaim.gateway import attempts
from essaim.gateway.attempts import Seldom
from gateway.rig import ACCOUNT, new_key, public, run, wait_for


def fingerprint(key):
    done = run(["ssh-keygen", "-l", "-f", str(key.with_suffix(".pub"))])
    return done.stdout.decode().split()[1]


def test_a_stranger_is_recorded_once_however_often_they_try(fleet, tmp_path):
    stranger = new_key(tmp_path / "stranger")
    for _ in range(3):
        assert b"Permission denied" in fleet.ssh("true", key=stranger).stderr
    assert b"Permission denied" in fleet.ssh("true", key=stranger, user=f"{ACCOUNT}.2").stderr
    assert b"Permission denied" in fleet.ssh("true", user="l-nobody00").stderr
    wait_for(lambda: len(fleet.book.strangers) == 2, "both leases are recorded")
    first, second = fleet.book.strangers
    assert (first.account, first.node, first.client) == (ACCOUNT, "", "127.0.0.1")
    assert first.key == fingerprint(stranger)
    assert first.refused == "no key of this lease was shown"
    assert second.account == "l-nobody00"


def test_the_owner_is_no_stranger_though_their_agent_is_full_of_keys(fleet, tmp_path):
    others = [new_key(tmp_path / f"key-{number}") for number in range(2)]
    words = fleet.words("echo in")
    words[1:1] = [word for key in others for word in ("-i", str(key))]
    assert run(words).stdout == b"in\n"
    wait_for(fleet.book.all_closed, "the visit is over")
    assert not fleet.book.strangers


def test_who_has_no_key_at_all_is_recorded_too(fleet):
    fleet.ssh("true", PreferredAuthentications="password")
    wait_for(lambda: fleet.book.strangers, "it is recorded")
    assert fleet.book.strangers[0].key == ""


def test_a_node_with_the_wrong_key_is_nobodys_lease(fleet, tmp_path):
    fleet.book.node_keys["n-1"] = public(new_key(tmp_path / "tunnel"))
    assert b"Permission denied" in fleet.ssh("true", user="node-n-1").stderr
    fleet.ssh("true", user="l-nobody00")
    wait_for(lambda: fleet.book.strangers, "the one after it is recorded")
    assert [each.account for each in fleet.book.strangers] == ["l-nobody00"]


def test_a_thing_that_may_happen_seldom_happens_again_with_time():
    now = [0.0]
    seldom = Seldom(2, every=10.0, clock=lambda: now[0])
    assert [seldom.allows("a") for _ in range(4)] == [True, True, False, False]
    assert seldom.allows("b")
    now[0] += 9
    assert not seldom.allows("a")
    now[0] += 2  # asking in vain does not put it off
    assert seldom.allows("a")
    assert not seldom.allows("a")


def test_what_was_not_seen_for_long_is_forgotten(monkeypatch):
    monkeypatch.setattr(attempts, "KEPT", 2)
    seldom = Seldom(1, every=1e9)
    assert all(seldom.allows(key) for key in "abc")
    assert not seldom.allows("c")
    assert seldom.allows("a")
