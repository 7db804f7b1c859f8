"""A process is killed at every request: each wanted machine is there once, and nothing besides.

For every way to make a machine, with a token that sees its pool alone and one that sees all, on a
storage that is quicker or slower than anybody waits.  Each request is tried twice: killed before it
is sent, and after it was carried out but before its answer is seen.  All victims of a case work at
once, each on a machine of its own, and one process comes after them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from drivers.proxmox_crash import SOURCES, Victims, count_is_right, quick
from drivers.proxmox_lab import prox_lab
from essaim_lab.simulators.proxmox import StorageSettings
from patience import in_test_all

#: The clerk of a process that is killed dies with it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
#: Simulated seconds to copy a GiB: at once, and longer than whatever waits for an answer.
STORAGES = {"fast": 0.5, "slow": 80.0}
CASES = [
    (source, token, storage)
    for source in SOURCES
    for token in ("narrow", "wide")
    for storage in STORAGES
]
#: Of these, some requests in every run of the tests.
AT_ONCE = [("clone-qemu", "narrow", "fast"), ("archive", "narrow", "fast")]
#: The first request that changes something makes the machine; the ones after it set it up.
SOME = [(1, False), (2, True), (3, False)]


def lab(tmp_path, source: str, token: str, storage: str):
    kept = StorageSettings(name="vol-ceph-1", copy_seconds=STORAGES[storage], copies=64)
    narrow = token == "narrow"
    return prox_lab(
        tmp_path, SOURCES[source], narrow=narrow, gib=1, copies=3, storages=[kept], speed=40.0
    )


def killed_at(it, monkeypatch, moments, *, changes: bool) -> None:
    """Let one process die at each moment, then another one end what they began."""
    victims = Victims(it, monkeypatch)
    machines = [it.machine(it.stack(), number) for number in range(1, len(moments) + 1)]
    for machine, (call, before) in zip(machines, moments, strict=True):
        victims.add(machine, call, before=before, changes=changes)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(victims.up, machines))
        names = {machine.name.machine for machine in machines}
        list(pool.map(lambda machine: it.up("lab", int(machine.name.machine[1:])), machines))
        count_is_right(it, names)
        # And on the way back.
        for machine, (call, before) in zip(machines, moments, strict=True):
            victims.add(machine, call, before=before, changes=changes)
        list(pool.map(victims.down, machines))
        list(pool.map(lambda machine: it.driver.destroy(machine.name), machines))
    count_is_right(it, set())


@pytest.mark.parametrize("case", AT_ONCE, ids="-".join)
def test_killed_at_some_requests(tmp_path, monkeypatch, case):  # R-B2
    quick(monkeypatch)
    with lab(tmp_path, *case) as it:
        killed_at(it, monkeypatch, SOME, changes=True)


@in_test_all
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_killed_at_every_request(tmp_path, monkeypatch, case):  # R-B2
    quick(monkeypatch)
    with lab(tmp_path, *case) as it:
        victims = Victims(it, monkeypatch)
        machine = it.machine(it.stack(), 1)
        most = victims.requests(machine)
        count_is_right(it, set())
        assert most >= 4
        moments = [(call, before) for call in range(1, most + 1) for before in (True, False)]
        killed_at(it, monkeypatch, moments, changes=False)
