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
    entered = door.enter(address)
    if entered:
        door.leave(address)
    return entered


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
    assert [door.enter("192.0.2.1") for _ in range(4)] == [True, True, True, False]
    door.leave("192.0.2.1")
    assert door.enter("192.0.2.1")


def test_no_more_than_some_may_be_at_the_door_from_everywhere(now):
    door = Attempts(everywhere=2, clock=lambda: now[0])
    assert [door.enter(f"192.0.2.{number}") for number in range(3)] == [True, True, False]
    door.leave("192.0.2.0")
    assert door.enter("192.0.2.3")


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
    assert door.enter("192.0.2.1")
    for number in range(100):
        door.failed(f"198.51.100.{number}")
    assert len(door._records) <= 11
    assert "192.0.2.1" in door._records
    door.leave("192.0.2.1")
