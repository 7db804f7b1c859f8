"""Which faults happen when."""

from __future__ import annotations

import pytest

from chaos.schedule import Fault, kinds, plan

MACHINES = ("nodes-1", "nodes-2")
MINUTES = 10


def planned(seed: int) -> list[Fault]:
    return plan(seed, MINUTES * 60, kinds(MACHINES))


def test_a_seed_decides_everything():
    assert planned(7) == planned(7)
    assert planned(7) != planned(8)


@pytest.mark.parametrize("seed", range(20))
def test_in_ten_minutes_everything_breaks_that_can(seed):
    wanted = {f"{kind.kind} {kind.targets[0].partition('-')[0]}" for kind in kinds(MACHINES)}
    assert {fault.name for fault in planned(seed)} == wanted


@pytest.mark.parametrize("seed", range(20))
def test_nothing_breaks_that_is_broken_already(seed):
    until: dict[str, float] = {}
    for fault in planned(seed):
        assert fault.at >= until.get(fault.target, 0.0)
        assert fault.at < MINUTES * 60
        until[fault.target] = fault.at + fault.seconds
