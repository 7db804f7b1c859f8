from __future__ import annotations

import subprocess
import sys

import pytest

from essaim.engine import owner
from essaim.engine.owner import owner_is_dead, this_owner

SAY = "from essaim.engine.owner import this_owner; print(this_owner(), flush=True); input()"


def test_a_process_is_dead_once_it_is_gone_and_not_before():
    process = subprocess.Popen(
        [sys.executable, "-c", SAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    its = process.stdout.readline().strip()
    assert not owner_is_dead(its)
    process.kill()
    process.communicate()
    assert owner_is_dead(its)


def test_this_process_lives():
    assert not owner_is_dead(this_owner())


def test_a_reused_pid_is_another_process():
    *rest, started = this_owner().split(":")
    assert owner_is_dead(":".join([*rest, str(int(started) + 1)]))


@pytest.mark.parametrize("name", ["", "me", "far:boot:1:2:3", "a:b:c"])
def test_nothing_is_known_of_others(name):
    assert not owner_is_dead(name)


def test_nothing_is_known_of_another_boot_or_namespace():
    host, boot, namespace, pid, _started = this_owner().split(":")
    assert not owner_is_dead(f"{host}:another:{namespace}:{pid}:1")
    assert not owner_is_dead(f"{host}:{boot}:1:{pid}:1")


def test_without_proc_nothing_is_certain(monkeypatch, tmp_path):
    monkeypatch.setattr(owner, "PROC", tmp_path)
    mine = this_owner()
    assert mine.split(":")[1] == "unknown"
    assert not owner_is_dead(mine)


def test_it_fits_its_column():
    assert len(this_owner()) <= 190
