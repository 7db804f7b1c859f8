"""A cluster of virtual machines on a server that lets its user do nothing special.

R-A2, R-A3, R-A4, R-C1.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from contextlib import contextmanager

import pytest

from hypervisor import Watch
from kvm.lab import PATIENCE, Lab, bases, beside_bases, only_bases_left, volumes_of
from patience import LIBVIRT, in_test_libvirt

#: Each boot takes its time, and with the rest of the suite beside it even more.
NAMES = [f"nodes-{number}" for number in range(1, (3 if LIBVIRT else 2) + 1)]


@pytest.mark.timeout(1200)
def test_machines_meet_by_name_one_is_healed_and_only_the_image_is_left(lab, watch):
    where = lab.stack("crew", len(NAMES))
    assert "done in" in lab.types("up", where)
    assert lab.server.domains() == {f"crew.{name}": "on" for name in NAMES}
    assert beside_bases(lab.server) == volumes_of("crew", NAMES)
    lab.all_meet("crew")
    reached_through_the_loopback_alone(lab, watch)

    image = kept(lab)
    lab.server.virsh("destroy", "crew.nodes-2")
    assert lab.power("crew") == {**dict.fromkeys(NAMES, "on"), "nodes-2": "off"}
    assert "is off" in lab.types("up", where)
    assert set(lab.power("crew").values()) == {"on"}
    lab.all_meet("crew")
    assert "nothing to change" in lab.types("up", where)

    lab.types("down", "crew", "--yes")
    only_bases_left(lab.server)
    assert kept(lab) == image != {}
    assert lab.reservations() == []


def reached_through_the_loopback_alone(lab: Lab, watch: Watch) -> None:
    """Each machine has its own port, and they share one group that is heard on the loopback."""
    seen = lab.server.listeners()
    assert {one.address for one in seen if one.protocol == "tcp"} == {"127.0.0.1"}
    assert len([one for one in seen if one.protocol == "tcp"]) == len(NAMES)
    groups = {one for one in seen if ipaddress.ip_address(one.address).is_multicast}
    assert len(groups) == 1
    assert {one.joined for one in groups} == {("lo",)}
    assert watch.strays == []
    assert watch.looks > 10


def kept(lab: Lab) -> dict[str, tuple[int, int, int]]:
    """The images there and when each was last written."""
    (pool,) = [path for path in lab.server.home.rglob("pool") if path.is_dir()]
    found = {name: (pool / name).stat() for name in bases(lab.server)}
    return {name: (it.st_ino, it.st_size, it.st_mtime_ns) for name, it in found.items()}


@contextmanager
def nothing_uploaded(lab: Lab):
    """Nothing that could be an image is written meanwhile."""
    (pool,) = [path for path in lab.server.home.rglob("pool") if path.is_dir()]
    before, over, seen = kept(lab), threading.Event(), set()

    def look() -> None:
        while not over.wait(0.05):
            seen.update(path.name for path in pool.glob("base-*"))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert kept(lab) == before
    assert seen == set(before)


@in_test_libvirt
@pytest.mark.timeout(1800)
def test_a_machine_is_rebooted_kept_and_restored_and_a_second_raise_uploads_nothing(lab):
    where = lab.stack("pair", 2)
    lab.types("up", where)
    before = boot_id(lab, "pair/nodes-1")
    lab.types("run", "pair/nodes-1", "--", "touch", "/root/kept")
    lab.types("run", "pair/nodes-1", "--", "sh", "-c", "sync; (sleep 1; reboot) >/dev/null 2>&1 &")
    answers_again(lab, "pair/nodes-1", lambda: boot_id(lab, "pair/nodes-1") not in ("", before))
    assert "nothing to change" in lab.types("up", where)
    lab.types("run", "pair/nodes-1", "--", "test", "-e", "/root/kept")
    lab.all_meet("pair")

    lab.types("snapshot", "make", "pair/nodes-1", "good")
    assert "good" in lab.types("snapshot", "list", "pair/nodes-1")
    lab.types("run", "pair/nodes-1", "--", "sh", "-c", "rm /root/kept; touch /root/spoilt; sync")
    lab.types("snapshot", "restore", "pair/nodes-1", "good", "--yes")
    lab.types("up", where)
    lab.types(
        "run", "pair/nodes-1", "--", "sh", "-c", "test -e /root/kept && ! test -e /root/spoilt"
    )
    lab.all_meet("pair")

    lab.types("down", "pair", "--yes")
    only_bases_left(lab.server)
    with nothing_uploaded(lab):
        lab.types("up", where)
        lab.all_meet("pair")
        lab.types("down", "pair", "--yes")
    only_bases_left(lab.server)


def boot_id(lab: Lab, machine: str) -> str:
    """Differs after every boot; nothing while it does not answer."""
    said = lab.types("run", machine, "--", "cat", "/proc/sys/kernel/random/boot_id", code=None)
    return said.strip() if said.count("-") == 4 else ""


def answers_again(lab: Lab, machine: str, holds) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"{machine} did not come back"
        time.sleep(1)


@in_test_libvirt
@pytest.mark.timeout(1800)
def test_two_clusters_with_the_same_addresses_do_not_hear_each_other(lab, watch):
    left, right = lab.stack("left", 2), lab.stack("right", 3)
    lab.types("up", left)
    lab.types("up", right)
    here, there = lab.all_meet("left"), lab.all_meet("right")
    assert here.items() < there.items()
    # This address is somebody's, but not here.
    only_right = there["nodes-3"]
    lab.types("run", "right/nodes-1", "--", "ping", "-c", "1", "-W", "20", only_right)
    said = lab.types("run", "left/nodes-1", "--", "ping", "-c", "3", "-W", "5", only_right, code=1)
    assert " 0 packets received" in said or " 0 received" in said
    groups = {
        (one.address, one.port)
        for one in lab.server.listeners()
        if ipaddress.ip_address(one.address).is_multicast
    }
    assert len(groups) == 2
    lab.types("down", "left", "--yes")
    lab.all_meet("right")
    lab.types("down", "right", "--yes")
    only_bases_left(lab.server)
    assert watch.strays == []
