"""Simulated agents are believed by a real server, whose CPU and memory are read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from essaim_lab.bench import beats, server
from patience import in_test_all


@in_test_all
@pytest.mark.timeout(300)
@pytest.mark.parametrize("shared", [0, 2])
def test_every_beat_of_every_agent_is_answered(tmp_path, shared):
    url = f"sqlite:///{tmp_path}/essaim.db"
    with server.serving(Path(tmp_path), url, interval=60.0) as served:
        credentials = beats._seeded(url, 6)
        found = beats.beat(served, credentials, 0.2, 0.4, shared=shared)
    assert found.sent == 12
    assert found.lost == Counter()
    assert len(found.times) == 12
    assert found.after > 1_000_000


@pytest.mark.timeout(300)
def test_a_beat_that_is_refused_is_lost(tmp_path):
    url = f"sqlite:///{tmp_path}/essaim.db"
    with server.serving(Path(tmp_path), url) as served:
        beats._seeded(url, 1)
        found = beats.beat(served, ["node_wrong"], 0.1, 0.1)
    assert found.lost.total() == found.sent == 1
    assert next(iter(found.lost)).startswith("401 ")


def test_rows_promise_cpu_losses_and_memory():
    found = beats.Beats(
        sent=1000, lost=Counter(), times=[0.1], seconds=120, cpu=12, before=10**8, after=10**8
    )
    rows = list(beats.rows(found, 10_000, 30.0))
    assert [row.value for row in rows] == [10.0, 12.0, 0, 0.1, 0.0]
    assert [row.verdict for row in rows] == ["ok", "-", "ok", "-", "ok"]
    leaks = beats.Beats(sent=1, times=[0.1], seconds=60, before=10**8, after=2 * 10**8)
    assert list(beats.rows(leaks, 1, 30.0))[4].verdict == "MISSED"
