"""Control groups of stacks that begin and end beside each other."""

from __future__ import annotations

import threading

import pytest

from essaim.drivers.sandbox.cgroups import Cgroups

pytestmark = pytest.mark.root
TIMES = 300


def test_a_stack_that_ends_takes_no_limits_from_one_that_begins(tmp_path):
    one, other = (Cgroups.find(tmp_path / name, rootless=False) for name in ("one", "other"))
    if not one.stacks:
        pytest.skip("no control groups here")
    over = threading.Event()

    def begin_and_end() -> None:
        while not over.is_set():
            other.make("m", 0)
            other.remove_all()

    beside = threading.Thread(target=begin_and_end)
    beside.start()
    try:
        for _ in range(TIMES):
            assert len(one.make("m", 64)) == len(one.stacks)
            assert one.remove_all()
    finally:
        over.set()
        beside.join()
        other.remove_all()
        one.remove_all()
