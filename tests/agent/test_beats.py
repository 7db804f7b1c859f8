"""When an agent beats and what it says: R-D1."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essaim.agent.loop import LONGEST_PAUSE, Agent, asked_interval, next_beat, pause_after
from essaim.agent.server import RefusedError, State, beat_of

CHANCES = st.floats(0, 1)


@given(st.floats(0.1, 3600), CHANCES)
def test_beats_come_in_time_and_not_all_at_once(interval, chance):
    """Never later than the interval, which the server counts by; spread over a fifth of it."""
    assert 0.8 * interval * 0.999 <= next_beat(interval, chance) <= interval * 1.001
    assert next_beat(interval, 0.0) < next_beat(interval, 1.0)


@given(st.integers(1, 100), st.floats(0.1, 3600), CHANCES)
def test_pauses_grow_and_differ(failures, interval, chance):
    pause = pause_after(failures, interval, chance)
    assert interval / 2 <= pause <= max(LONGEST_PAUSE, interval)
    assert pause_after(failures + 1, interval, chance) >= pause
    assert pause_after(failures, interval, 0.0) < pause_after(failures, interval, 1.0)


@pytest.mark.parametrize(
    ("given", "interval"),
    [
        ({}, 30.0),
        ({"interval": 5}, 5.0),
        ({"interval": 0.5}, 0.5),
        *(({"interval": bad}, 30.0) for bad in (0, -1, 1e9, "5", None, True, [5], float("nan"))),
    ],
)
def test_an_interval_that_makes_no_sense_is_not_taken(given, interval):
    assert asked_interval(given, 30.0) == interval


@pytest.mark.parametrize("jump", [-365 * 86400, 365 * 86400])
def test_a_beat_does_not_depend_on_the_clock(monkeypatch, jump):
    """A machine whose clock is a year off, or jumps by one, beats as any other."""
    before = beat_of(0)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    after = beat_of(before["seq"])
    assert before["seq"] < after["seq"] < before["seq"] + 600_000
    assert after["boot_id"] == before["boot_id"]
    assert not [name for name, value in after.items() if value == pytest.approx(time.time(), abs=9)]


def test_a_beat_tells_the_load(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1.239, 7.0, 9.0))
    assert beat_of(0)["load"] == 1.24


def test_one_that_is_refused_still_ends_the_leases_that_are_there(monkeypatch, tmp_path, capsys):
    """A machine that was taken out of the fleet must not stay open for its last clients.  R-D4."""
    kept = {"id": "n-1", "server": "http://127.0.0.1:1", "tunnel": False, "interval": 1.0}
    state = State(tmp_path)
    state.write({**kept, "credential": "x"})
    there, reaped = [["l-a"], ["l-a"], ["l-a"], ["l-a"], []], []
    monkeypatch.setattr("essaim.agent.loop.known_accounts", lambda: there.pop(0))
    monkeypatch.setattr("essaim.agent.loop.REAP_EVERY", 0.001)
    monkeypatch.setattr(Agent, "_reap", lambda _: reaped.append(1))
    Agent(state)._outlive(RefusedError("This agent stops"))
    assert len(reaped) == 3
    assert "only ends the leases that are still here" in capsys.readouterr().out
