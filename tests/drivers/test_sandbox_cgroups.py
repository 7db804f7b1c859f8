"""Control groups of stacks that begin and end beside each other."""

from __future__ import annotations

import os
import threading

import pytest

from essaim.drivers.sandbox import cgroups
from essaim.drivers.sandbox.cgroups import Cgroups, Limits

pytestmark = pytest.mark.root
TIMES = 150


def test_a_stack_that_ends_takes_no_limits_from_one_that_begins(tmp_path):
    one, other = (Cgroups.find(tmp_path / name, rootless=False) for name in ("one", "other"))
    if not one.stacks:
        pytest.skip("no control groups here")
    over = threading.Event()

    def begin_and_end() -> None:
        while not over.is_set():
            other.make("m", Limits())
            other.remove_all()

    beside = threading.Thread(target=begin_and_end)
    beside.start()
    try:
        for _ in range(TIMES):
            assert len(one.make("m", Limits(memory=64, cores=1, cpus="0"))) == len(one.stacks)
            assert one.remove_all()
    finally:
        over.set()
        beside.join()
        other.remove_all()
        one.remove_all()


def test_version_2_gets_the_same_limits(tmp_path):
    """A fake: plain files where a computer with version 2 has its controllers."""
    stack = tmp_path / "essaim" / "lab-1"
    names = ("cpu.max", "memory.max", "memory.swap.max", "cpuset.cpus")
    for group in (stack / "m", stack / "m" / "machine"):
        group.mkdir(parents=True)
        for name in names:
            (group / name).touch()
    groups = Cgroups([tmp_path], "lab-1").make("m", Limits(memory=64, cores=2, cpus="0-1"))
    assert groups == [stack / "m" / "machine"]
    for group in (stack / "m", *groups):
        found = [(group / name).read_text() for name in names]
        assert found == ["200000 100000", str(64 << 20), "0", "0-1"]


def test_a_plain_user_is_given_the_highest_group_they_may_write(tmp_path, monkeypatch):
    """A fake tree, as systemd delegates one to a user's session."""
    monkeypatch.setattr(cgroups, "_BASE", tmp_path)
    scope = tmp_path / "user.slice" / "user@1000.service" / "app.slice" / "run.scope"
    scope.mkdir(parents=True)
    for group in (scope, scope.parent, scope.parents[1], scope.parents[2]):
        (group / "cgroup.controllers").write_text("memory pids\n")
    monkeypatch.setattr(os, "access", lambda path, _mode: path != tmp_path / "user.slice")
    own = tmp_path / "self"
    own.write_text(f"1:name=systemd:/\n0::/{scope.relative_to(tmp_path)}\n")
    assert list(cgroups._delegated(own)) == [tmp_path / "user.slice" / "user@1000.service"]
    own.write_text("0::/\n")
    assert list(cgroups._delegated(own)) == []
