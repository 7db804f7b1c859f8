"""Sandbox machines are the size they say, with and without privileges."""

from __future__ import annotations

import os

import pytest

from drivers.lab import wait_for
from drivers.sandbox_checks import CHECKS, TAKE, sized
from essaim.drivers.sandbox.cgroups import Cgroups

NAMES = [check.__name__ for check in CHECKS]


@pytest.mark.parametrize("check", CHECKS, ids=NAMES)
def test_as_whoever_runs_this(it, check):
    check(it)


@pytest.mark.root
def test_as_a_plain_user(somebody, their_rootfs):
    done = somebody.run_python("-m", "drivers.sandbox_checks", ",".join(NAMES), str(their_rootfs))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root's limits are sure to be enforced")
def test_who_takes_more_memory_than_the_machine_has_is_killed_and_nobody_else(it):
    if not Cgroups.find(it.state, rootless=False).stacks:
        pytest.skip("no control groups here")
    name = sized(it, 1, 128)
    boot = it.seen(name).boot
    assert it.run(name, f"{TAKE.format(40)}; echo $?") == "0\n"
    assert it.run(name, f"{TAKE.format(400)}; echo $?").splitlines()[-1] == "137"
    assert it.seen(name).boot == boot, "the machine goes on"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root's memory is sure to be counted")
def test_a_machine_sees_how_much_memory_it_uses(it):
    if not Cgroups.find(it.state, rootless=False).stacks:
        pytest.skip("no control groups here")
    name = sized(it, 1, 256)
    it.run(name, "head -c 60M /dev/zero >/dev/shm/x")

    def used() -> int:
        return int(it.run(name, "free -m").split()[8]) + int(it.run(name, "free -m").split()[11])

    wait_for(lambda: used() >= 60, "free shows what is in use")
    assert used() < 256
