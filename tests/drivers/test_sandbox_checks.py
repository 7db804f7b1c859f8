"""Sandbox machines are the size they say, with and without privileges."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drivers.lab import wait_for
from drivers.sandbox_checks import CHECKS, IN_A_WORLD, TAKE, sized
from drivers.world import in_a_world
from essaim.drivers.sandbox.cgroups import Cgroups
from essaim.drivers.sandbox.uplink import is_forbidden

NAMES = [check.__name__ for check in CHECKS]


@pytest.mark.parametrize("check", CHECKS, ids=NAMES)
def test_as_whoever_runs_this(it, check):
    check(it)


@pytest.mark.root
def test_as_a_plain_user(somebody, their_rootfs):
    done = somebody.run_python("-m", "drivers.sandbox_checks", ",".join(NAMES), str(their_rootfs))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.root
@pytest.mark.parametrize("who", ["root", "plain"])
@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network of its own")
def test_internet_is_opt_in(who, request, rootfs, tmp_path):
    words = ("-m", "drivers.sandbox_checks", ",".join(check.__name__ for check in IN_A_WORLD))
    resolv_conf = str(tmp_path / "resolv.conf")
    if who == "root":
        command, place = [sys.executable, *words, str(rootfs)], tmp_path
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    else:
        somebody = request.getfixturevalue("somebody")
        theirs = str(request.getfixturevalue("their_rootfs"))
        command, place = somebody.command(somebody.python, *words, theirs), somebody.home
        env = somebody.env
    done = subprocess.run(
        in_a_world(resolv_conf, command),
        cwd=place,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_leads_back_into_the_computer_is_forbidden():
    bad = ("127.0.0.1", "127.9.9.9", "0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255")
    assert [address for address in bad if not is_forbidden(address)] == []
    assert not is_forbidden("192.0.2.1")
    assert not is_forbidden("169.253.0.1")


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
