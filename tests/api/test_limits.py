"""Guessing is slow, and nobody can fill the memory with tries."""

from __future__ import annotations

import pytest

from api.rig import FREELY, PASSWORD, is_problem, world
from essaim.api import limits
from essaim.api.limits import Limiter, Rate, TooManyError

WRONG = {"name": "ada", "password": "not the password"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def strict(**rates) -> dict[str, Rate]:
    return {**FREELY, **{key.replace("_", " "): rate for key, rate in rates.items()}}


def test_tries_are_counted_by_name(new_database, clock):
    rates = strict(login_name=Rate(3, 60.0))
    with world(new_database("sqlite"), rates=rates, clock=clock) as there:
        for _try in range(3):
            is_problem(there.ask("POST", "/api/login", json=WRONG), 401, "unauthorised")
        answer = there.ask("POST", "/api/login", json=WRONG)
        is_problem(answer, 429, "too-many")
        assert int(answer.headers["retry-after"]) == 20
        other = there.ask("POST", "/api/login", json={**WRONG, "name": "eve"})
        is_problem(other, 401, "unauthorised")
        clock.now += 20
        is_problem(there.ask("POST", "/api/login", json=WRONG), 401, "unauthorised")
        is_problem(there.ask("POST", "/api/login", json=WRONG), 429, "too-many")


@pytest.mark.parametrize(
    ("kind", "path", "body"),
    [
        ("login", "/api/login", lambda n: {**WRONG, "name": f"name-{n}"}),
        ("signup", "/api/signup", lambda n: {**WRONG, "name": f"name-{n}"}),
        (
            "register",
            "/api/workers/register",
            lambda n: {
                "token": "none",
                "name": f"pc-{n}",
                "cores": 1,
                "memory": 1,
                "tunnel": True,
                "host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5",
            },
        ),
    ],
)
def test_tries_are_counted_by_address(new_database, clock, kind, path, body):
    rates = strict(**{f"{kind}_address": Rate(2, 60.0)})
    with world(new_database("sqlite"), rates=rates, clock=clock) as there:
        for number in range(2):
            assert there.ask("POST", path, json=body(number)).status_code in (201, 401)
        is_problem(there.ask("POST", path, json=body(2)), 429, "too-many")
        # The server believes its neighbour about where others are.
        elsewhere = {"X-Forwarded-For": "192.0.2.5"}
        answer = there.ask("POST", path, json=body(3), headers=elsewhere)
        assert answer.status_code in (201, 401)


def test_who_knows_the_password_is_not_held_up(new_database, clock):
    rates = strict(login_name=Rate(1, 60.0))
    who = {"name": "ada", "password": PASSWORD}
    with world(new_database("sqlite"), rates=rates, clock=clock) as there:
        there.ask("POST", "/api/signup", json=who)
        for _time in range(3):
            assert there.ask("POST", "/api/login", json=who).status_code == 200


def test_nothing_is_counted_when_one_of_the_keys_is_used_up(clock):
    limiter = Limiter({"a": Rate(1, 10.0), "b": Rate(1, 10.0)}, clock)
    limiter.take({"a": "x"})
    with pytest.raises(TooManyError) as caught:
        limiter.take({"a": "x", "b": "y"})
    assert caught.value.wait == pytest.approx(10.0)
    limiter.take({"b": "y"})


def test_the_memory_of_tries_is_bounded(clock, monkeypatch):
    monkeypatch.setattr(limits, "MOST_KEYS", 100)
    limiter = Limiter({"a": Rate(1, 10.0)}, clock)
    for number in range(1000):
        limiter.take({"a": str(number)})
    assert len(limiter) <= 100
    clock.now += 11
    limiter.take({"a": "999"})
    for number in range(100):
        limiter.take({"a": f"later {number}"})
    assert len(limiter) <= 101
