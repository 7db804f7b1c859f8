"""Failures are counted for each address and forgiven with time."""

from __future__ import annotations

import pytest

from essaim.gateway import attempts
from essaim.gateway.attempts import Attempts


@pytest.fixture
def now():
    return [100.0]


@pytest.fixture
def door(now):
    return Attempts(2, every=10.0, waiting=3, clock=lambda: now[0])


def enters(door, address):
    """Whether anybody may log in from there: not only nodes."""
    entry = door.enter(address)
    if entry is not None:
        door.leave(entry)
    return entry is not None and not entry.nodes_only


def test_failures_close_the_door_until_one_is_forgiven(door, now):
    door.failed("192.0.2.1")
    assert enters(door, "192.0.2.1")
    door.failed("192.0.2.1")
    assert not enters(door, "192.0.2.1")
    assert enters(door, "192.0.2.2")
    now[0] += 9
    assert not enters(door, "192.0.2.1")
    now[0] += 2
    assert enters(door, "192.0.2.1")


def test_no_more_than_some_may_be_at_the_door_at_once(door):
    *inside, last = [door.enter("192.0.2.1") for _ in range(4)]
    assert None not in inside
    assert last is None
    door.leave(inside[0])
    assert door.enter("192.0.2.1")


def test_a_full_house_takes_a_place_from_the_address_with_the_most(now):
    door = Attempts(full=3, start=3, clock=lambda: now[0], chance=lambda: 0.99)
    dropped = []
    entries = [door.enter("192.0.2.1", lambda n=n: dropped.append(n)) for n in range(2)]
    assert door.enter("192.0.2.2", lambda: dropped.append("other"))
    assert door.enter("192.0.2.1") is None, "it has the most"
    assert door.enter("192.0.2.3", lambda: dropped.append("third"))
    assert dropped == [1]
    door.leave(entries[1])  # its connection ends after its place was given up
    # Where everybody has one, the newest takes somebody's place as well.
    assert door.enter("192.0.2.4")
    assert len(dropped) == 2


@pytest.mark.parametrize(
    ("chance", "enters"), [(0.0, False), (0.29, False), (0.31, True), (0.99, True)]
)
def test_early_drop_begins_with_a_share_of_those_who_have_some_waiting(now, chance, enters):
    door = Attempts(start=1, rate=0.3, full=101, clock=lambda: now[0], chance=lambda: chance)
    assert door.enter("192.0.2.1")
    assert (door.enter("192.0.2.1") is not None) is enters
    assert door.enter("192.0.2.2"), "whose first it is comes in"


def test_nodes_have_places_of_their_own(now):
    door = Attempts(full=2, clock=lambda: now[0])
    dropped = []
    for number in range(3):
        entry = door.enter(f"192.0.2.{number}", lambda n=number: dropped.append(n))
        door.take_node_place(entry, "node-n-1")
    assert dropped == [0], "a name has two places, whoever claims it; the oldest goes"
    strangers = [door.enter(f"192.0.2.{number}", dropped.clear) for number in range(10, 12)]
    assert None not in strangers
    assert dropped == [0], "and they are none of the strangers'"
    door.leave(entry)
    door.leave(entry)


def test_an_address_that_failed_too_often_is_open_to_nodes_alone(door):
    for _ in range(3):
        door.failed("192.0.2.1")
    entry = door.enter("192.0.2.1")
    assert entry.nodes_only


def test_success_takes_back_the_failures_before_it(door):
    door.failed("192.0.2.1")
    door.failed("192.0.2.1")
    door.forgive("192.0.2.1", 2)
    assert enters(door, "192.0.2.1")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8::1", "2001:db8::ffff"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::2"),
    ],
)
def test_addresses_of_one_person_count_together(door, one, other):
    door.failed(one)
    door.failed(one)
    assert not enters(door, other)


def test_memory_is_bounded_and_who_is_inside_is_not_forgotten(door, monkeypatch):
    monkeypatch.setattr(attempts, "KEPT", 10)
    entry = door.enter("192.0.2.1")
    for number in range(100):
        door.failed(f"198.51.100.{number}")
    assert len(door._records) <= 11
    assert "192.0.2.1" in door._records
    door.leave(entry)
