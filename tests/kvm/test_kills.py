"""`kill -9` at random moments of a raise: it converges, and nothing is left that nobody knows."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvm.lab import Lab, bases, beside_bases, only_bases_left, volumes_of
from patience import in_test_libvirt

NAMES = ["nodes-1", "nodes-2"]
KILLS = 10

pytestmark = in_test_libvirt


@pytest.mark.timeout(3600)
def test_killed_ten_times_at_random_moments_it_converges_and_leaves_no_orphan(lab):
    seed = int(os.environ.get("ESSAIM_TEST_SEED") or random.randrange(10**6))
    sys.stdout.write(f"ESSAIM_TEST_SEED={seed}\n")
    luck = random.Random(seed)
    where = lab.stack("frail", len(NAMES))
    lab.types("image", "build", "tiny", "--form", "disk")
    began = time.monotonic()
    lab.types("up", where)
    whole = time.monotonic() - began
    everything_stands(lab)
    lab.types("down", "frail", "--yes")
    only_bases_left(lab.server)
    killed = 0
    while killed < KILLS:
        if luck.random() < 0.3:
            forget_images(lab)  # so that it may die while it uploads one
        moment = luck.uniform(0.1, whole)
        if kill_after(lab, where, moment):
            whole *= 0.8  # the computer has become less busy: look for earlier moments
        else:
            killed += 1
        then = "up" if luck.random() < 0.5 or killed == KILLS else "down"
        sys.stdout.write(f"{killed} killed, the last after {moment:.2f} s; then {then}\n")
        if then == "up":
            lab.types("up", where)
            everything_stands(lab)
        lab.types("down", "frail", "--yes", code=None)
        nothing_stands(lab)


def kill_after(lab: Lab, where: str, seconds: float) -> bool:
    """Whether the raise ended before that."""
    process = lab.begins("up", where)
    try:
        process.communicate(timeout=seconds)
        return True
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False


def everything_stands(lab: Lab) -> None:
    """All machines answer, and there is nothing on the server beside them."""
    assert sorted(lab.all_meet("frail")) == NAMES
    assert lab.server.domains() == {f"frail.{name}": "on" for name in NAMES}
    assert beside_bases(lab.server) == volumes_of("frail", NAMES)
    images = {Path(name).stem for name in bases(lab.server)}
    assert bases(lab.server) == {f"{each}.{part}" for each in images for part in ("qcow2", "whole")}
    holders = {holder for _, holder, _ in lab.reservations()}
    assert all(holder.startswith("frail") for holder in holders)
    ports = [one for one in lab.server.listeners() if one.protocol == "tcp"]
    assert len(ports) == len(NAMES)


def nothing_stands(lab: Lab) -> None:
    """Nothing is left, but an image: half of one, perhaps, from where the next upload goes on."""
    only_bases_left(lab.server)
    assert lab.reservations() == []


def forget_images(lab: Lab) -> None:
    for pool, volumes in lab.server.volumes().items():
        for volume in volumes:
            lab.server.virsh("vol-delete", "--pool", pool, volume)
