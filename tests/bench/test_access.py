"""Rents arrive by themselves; on sandbox machines each ends in a command that ran."""

from __future__ import annotations

import os

import pytest

from essaim_lab.bench import access
from essaim_lab.bench.lab import fleet
from essaim_lab.bench.rows import table
from patience import in_test_all
from testcache import CACHE


def test_arrivals_are_the_same_each_time_and_as_many_as_promised():
    found = access.arrivals(400)
    assert found == sorted(found) == access.arrivals(400)
    assert found[0] == 0.0
    assert 150 < found[-1] < 250  # two a second


def test_rows_show_both_provisioners():
    first, second = access.rows([0.3, 0.4, 2.0], [9.0])
    assert (first.verdict, second.verdict) == ("ok", "MISSED")
    assert first.ratio == pytest.approx(9.0 / 0.4)
    assert "not measured: no ansible" in table(list(access.rows([0.3], "no ansible")))


@pytest.mark.root
@in_test_all
@pytest.mark.skipif(os.geteuid() != 0, reason="its images are root's")
@pytest.mark.timeout(900)
def test_a_lease_is_opened_and_survives_its_machine(monkeypatch):
    """R-D4 R-D5: rent to a command, then the machine is killed and another answers."""
    monkeypatch.setenv("ESSAIM_CACHE", str(CACHE))
    with fleet(2, interval=2.0) as lab:
        (seconds,) = access.opened(lab, 1)
        assert seconds > 0
        assert access.logged_in_again(lab) > 0
