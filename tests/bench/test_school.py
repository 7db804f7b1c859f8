"""A class is really made on a simulated cluster, by Essaim and by the others."""

from __future__ import annotations

import contextlib

import pytest

from essaim_lab.bench import school
from essaim_lab.bench.rows import CannotRunError
from essaim_lab.bench.school_apply import Applied
from essaim_lab.bench.school_apply import school as opened
from essaim_lab.bench.school_cluster import COPY, GIB, LARGE, SMALL, START, Outcome, cluster
from essaim_lab.bench.school_policies import FIXED_5, FIXED_10, SEQUENTIAL, carry_out
from essaim_lab.simulators.proxmox.clock import EPOCH, VirtualClock

FEW = 20


@pytest.mark.timeout(300)
def test_essaim_makes_them_all_and_then_has_nothing_to_do():
    with opened(LARGE, FEW, speed=60.0) as ours:
        first, second = ours.apply(), ours.apply()
        assert first.outcome.seconds >= ours.bound
    made = first.outcome
    assert (made.failed, made.doubles, made.errors) == (0, 0, {})
    assert made.calls >= 3 * FEW  # clone, set up, start
    assert first.done.cpu > 0
    assert first.threads > 1
    assert first.memory > 10**7
    # One asks whether the site answers, one for all machines.
    assert (second.outcome.failed, second.outcome.calls) == (0, 2)
    assert "nothing to change" in second.done.err


def test_nobody_is_faster_than_the_bound_and_one_by_one_is_slowest():
    found = {policy: carry_out(policy, LARGE, FEW) for policy in (FIXED_5, FIXED_10)}
    with cluster(LARGE, VirtualClock()) as its:
        bound = its.bound(FEW)
    assert bound >= FEW * GIB * COPY / LARGE.most
    slowest = FEW * (GIB * COPY + START)
    for outcome in found.values():
        assert outcome.failed == 0
        assert bound <= outcome.seconds < slowest
    assert found[FIXED_5].doubles == 0  # what its lock is for
    assert found[FIXED_10].doubles > 0  # several are told the same id


def test_the_bound_is_what_the_busiest_part_needs():
    """Worked out by hand: what is busiest, and a start at the end."""
    found = {}
    for like in (SMALL, LARGE):
        with cluster(like, VirtualClock()) as its:
            found[like] = its.bound(600)
    assert found[SMALL] == 600 / 5 * (8 * 3.0 + 0.25) + 4.0
    assert found[LARGE] == 600 * (8 * 3.0) / 12 + 4.0


def test_the_same_policy_gives_the_same_history():
    assert carry_out(FIXED_10, SMALL, 4) == carry_out(FIXED_10, SMALL, 4)


def test_one_by_one_waits_for_everything():
    found = carry_out(SEQUENTIAL, SMALL, 2)
    assert found.seconds >= 2 * (GIB * COPY + START)
    assert (found.failed, found.locked, found.doubles) == (0, 0, 0)


def test_machines_that_do_not_run_have_failed():
    with cluster(LARGE, VirtualClock()) as its:
        its.sim.fault("locks", share=1.0)
        upid = its.sim.ask("POST", "/nodes/pve1/lxc/9000/clone", newid=200, full=1)
        while its.sim.clock.jump():
            pass
        found = its.outcome(1, EPOCH)
        assert its.sim.ask("GET", f"/nodes/pve1/tasks/{upid}/status")["exitstatus"] != "OK"
    assert (found.failed, found.locked) == (1, 1)


def outcome(**changes) -> Outcome:
    values = {
        "machines": 600, "failed": 0, "seconds": 1900.0, "calls": 3000, "locked": 0,
        "doubles": 0, "errors": {},
    }  # fmt: skip
    return Outcome(**{**values, **changes})


def test_rows_compare_with_the_others():
    theirs = outcome(seconds=3800.0, locked=3, doubles=7, failed=2, errors={"500 broken": 2})
    rate, locked, doubles, failed = school.beside(FIXED_5, SMALL, outcome(), theirs)
    assert rate.ratio == pytest.approx(2.0, rel=0.01)
    assert [row.verdict for row in (rate, locked, doubles, failed)] == ["ok", "-", "ok", "ok"]
    assert [row.peer.value for row in (locked, doubles, failed)] == [3, 7, 2]
    assert "2 times 500 broken" in failed.peer.note


def test_a_class_that_is_not_whole_is_no_measurement(monkeypatch):
    class Short:
        bound = 1.0

        def apply(self):
            return Applied(done=None, outcome=outcome(failed=1), threads=1, memory=1, load=0.0)

    monkeypatch.setattr(school, "school", lambda *_: contextlib.nullcontext(Short()))
    with pytest.raises(CannotRunError, match="1 of 20 machines do not run"):
        next(school.measure(quick=True))
