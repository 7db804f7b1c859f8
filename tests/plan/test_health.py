"""Whether nodes are well (R-D5)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from essaim.model.fleet import NodeState
from essaim.plan.health import Healthy, Lost, Policy, Suspect, blind, verdict
from plan.fleets import NOW, nodes, well

POLICY = Policy()
NODE = well(1)[0]


def judged(silent: float, failures: int = 0):
    return verdict(
        replace(NODE, beat_at=NOW - round(silent * 1000), failures=failures), NOW, POLICY
    )


def test_a_node_is_lost_after_three_missed_beats_and_not_before():
    assert judged(0) == Healthy(30.0)
    assert judged(29) == Healthy(1.0)
    assert judged(30) == Suspect(1, 30.0)
    assert judged(89.5) == Suspect(2, 0.5)
    assert judged(90) == Lost("no heartbeat for 90 s")


def test_failed_checks_count_even_while_the_agent_speaks():
    assert judged(1, failures=2) == Suspect(2, 29.0)
    assert judged(1, failures=3) == Lost("3 checks over SSH failed in a row")


def test_a_clock_that_runs_ahead_makes_nobody_lost():
    assert judged(-3600) == Healthy(30.0)


@given(st.integers(0, 10**9), st.integers(0, 10), st.integers(0, 10**6), st.integers(0, 3))
def test_more_silence_and_more_failures_never_help(silent, failures, more, worse):
    order = [Healthy, Suspect, Lost]
    before = verdict(replace(NODE, beat_at=NOW - silent, failures=failures), NOW, POLICY)
    node = replace(NODE, beat_at=NOW - silent - more, failures=failures + worse)
    after = verdict(node, NOW, POLICY)
    assert order.index(type(after)) >= order.index(type(before))


@given(st.integers(0, 10**9), st.integers(0, 2))
def test_who_is_not_lost_is_looked_at_again_within_one_interval(silent, failures):
    found = verdict(replace(NODE, beat_at=NOW - silent, failures=failures), NOW, POLICY)
    if not isinstance(found, Lost):
        assert 0 < found.again_in <= POLICY.interval


def test_blind_when_many_fail_at_once():
    fleet = well(10)
    bad, good = Lost("silent"), Healthy(30.0)
    assert not blind(fleet, [bad] * 2 + [good] * 8, POLICY)
    assert blind(fleet, [bad] * 3 + [good] * 7, POLICY)
    assert not blind(fleet[:1], [bad], POLICY)
    assert not blind([], [], POLICY)


def test_nodes_lost_long_ago_do_not_blind_us_for_ever():
    gone = well(5, state=NodeState.LOST)
    fleet = [*gone, *well(5)]
    assert not blind(fleet, [Lost("silent")] * 6 + [Healthy(30.0)] * 4, POLICY)


@given(nodes(), st.integers(0, 10**7))
def test_blind_never_for_a_single_failure(fleet, later):
    verdicts = [verdict(node, NOW + later, POLICY) for node in fleet]
    if sum(isinstance(each, Lost) for each in verdicts) <= 1:
        assert not blind(fleet, verdicts, POLICY)
