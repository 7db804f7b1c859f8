"""The rights that docs/proxmox.md has people type are those the driver needs, and are enough.

The simulator stands for a cluster; where its checks were read is in docs/proxmox-behaviour.md.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drivers.proxmox_lab import TEMPLATE, ProxLab
from drivers.pveum import Node
from essaim.drivers.proxmox import permissions
from essaim.model.machines import Power
from essaim.model.stacks import Image, Network
from essaim_lab.simulators.proxmox import Simulator

PAGE = Path(__file__).parents[2] / "docs" / "proxmox.md"
VM = Image(name="vm", builder="template", digest="d-vm", settings={"template": "debian-vm"})
FULL = Image(
    name="full",
    builder="template",
    digest="d-full",
    settings={"template": 9000, "clone": "full"},
)
ARCHIVE = Image(
    name="archive",
    builder="template",
    digest="d-archive",
    settings={"ostemplate": "local:debian-12-standard"},
)
DISK = Image(
    name="disk",
    builder="template",
    digest="d-disk",
    settings={"disk": "local:import/debian-12.qcow2"},
)
NET = Network(cidr="10.77.0.0/24")


def typed_lines() -> list[str]:
    section = PAGE.read_text().partition("### A token from nothing")[2].partition("\n### ")[0]
    return re.findall(r"^\$ (.*)$", section, re.MULTILINE)


def table() -> dict[str, tuple[tuple[str, ...], frozenset[str]]]:
    """Path -> roles and what of them is used, as the page has it."""
    section = PAGE.read_text().partition("### A token from nothing")[2].partition("\n- ")[0]
    found = {}
    for row in re.findall(r"^\| (`/.*)\|$", section, re.MULTILINE):
        paths, roles, used, _why = (cell.strip() for cell in row.split("|"))
        for path in re.findall(r"`(/[^`]*)`", paths):
            found[path] = (tuple(re.findall(r"`(\w+)`", roles)), frozenset(used.split(", ")))
    return found


@pytest.fixture
def typed(tmp_path):
    """Makes a cluster on which nobody but root may do anything, and types the lines of the page."""
    open_ = []

    def make(version: int = 8) -> ProxLab:
        sim = Simulator(nodes=2, speed=100.0, version=version, stats_seconds=0.0)
        del sim.cluster.access.users["essaim@pve"]
        sim.cluster.access.rules.clear()
        sim.cluster.access.changed()
        sim.cluster.pools.clear()
        sim.open()
        node = Node(tmp_path / "bin", sim)
        secret = [node.type(line) for line in typed_lines()][-1]
        sim.plane_token, sim.plane_secret = secret["full-tokenid"], secret["value"]
        place = tmp_path / f"lab{version}"
        place.mkdir()
        lab = ProxLab(place, sim, vlan=285)
        open_.extend([lab.close, sim.close])
        return lab

    yield make
    for close in open_:
        close()


def strip_roles(it: ProxLab) -> None:
    """Leave of the built-in roles what the page says is used of them, and nothing else."""
    access = it.sim.cluster.access
    used: dict[str, set[str]] = {}
    for roles, privileges in table().values():
        for role in roles:
            used.setdefault(role, set()).update(privileges & access.roles[role])
    access.roles = {role: frozenset(privileges) for role, privileges in used.items()}
    access.changed()


def watch_rights(it: ProxLab) -> set[str]:
    """The privileges that the cluster asks the account for from now on, and finds."""
    access, found = it.sim.cluster.access, set()
    need, may = access.need, access.may

    def watched_need(who: str, path: str, *wanted: str) -> None:
        need(who, path, *wanted)
        found.update(wanted if who == it.sim.plane_token else ())

    def watched_may(who: str, path: str, *wanted: str) -> bool:
        has = may(who, path, *wanted)
        found.update(wanted if has and who == it.sim.plane_token else ())
        return has

    access.need, access.may = watched_need, watched_may
    return found


def made(it: ProxLab, number: int, image: Image):
    machine = it.machine(it.stack("lab"), number)
    it.driver.create(machine, NET, image, it.seed(machine))
    return machine.name


def test_five_lines_are_enough_for_all_that_the_driver_does(typed):
    assert len(typed_lines()) == 5
    it = typed()
    strip_roles(it)
    asked = watch_rights(it)
    images = (TEMPLATE, VM, FULL, ARCHIVE, DISK)
    names = [made(it, number, image) for number, image in enumerate(images, 1)]
    driver = it.driver
    for name in names:
        driver.start(name)
    assert [each.power for each in driver.observe("lab")] == [Power.ON] * len(names)
    for name in names:
        driver.stop(name)
    for name in names[:2]:
        driver.snapshot(name, "before")
        driver.restore(name, "before")
        driver.drop_snapshot(name, "before")
        assert driver.snapshots(name) == []
    # One that is there already goes into the pool first, as the page says.
    it.sim.ask("POST", "/nodes/pve1/lxc/9000/clone", newid=120, hostname="old")
    machine = it.machine("lab", 9)
    with pytest.raises(Exception, match="no machine 120"):
        driver.adopt("120", machine, NET)
    lines = re.findall(r"`(pveum pool modify [^`]*)`", PAGE.read_text())
    Node(it.place / "bin", it.sim).type(lines[0])
    driver.adopt("120", machine, NET)
    assert "adopted" in it.sim.cluster.guests[120].conf["tags"]
    for name in names:
        driver.destroy(name)
    assert set(it.guests(ours=False)) == {120}
    # Nothing is on the page that was not asked for; the pool itself only the doctor looks at.
    it.new_driver().examine([TEMPLATE])
    assert asked >= frozenset().union(*(used for _roles, used in table().values()))


@pytest.mark.parametrize("version", [7, 9])
def test_they_are_enough_in_other_versions_too(typed, version):
    it = typed(version)
    names = [made(it, number, image) for number, image in enumerate((TEMPLATE, VM, ARCHIVE), 1)]
    it.driver.snapshot(names[1], "before")
    for name in names:
        it.driver.destroy(name)
    assert it.guests(ours=False) == {}
    checks = it.new_driver().examine([TEMPLATE, VM, ARCHIVE, DISK])
    assert [each for each in checks if not each.ok or each.warn] == []


def test_the_doctor_wants_what_the_page_gives(typed):
    it = typed()
    settings = it.new_driver().settings
    site = permissions.Site(
        storages={"vol-ceph-1": ["images", "rootdir"], "local": ["vztmpl"]},
        templates=[9000, 9500],
        cards=[("vmbr0", ""), ("vmbr0", "285")],
    )
    needs = permissions.needs(settings, site)
    assert {need.path: (need.roles, need.privileges) for need in needs} == table()
    for need in needs:
        rules = it.sim.cluster.access.rules[need.path, "user", "essaim@pve"]
        assert rules == dict.fromkeys(need.roles, need.propagate), need.path
    assert {key[0] for key in it.sim.cluster.access.rules} == {need.path for need in needs}
    checks = it.new_driver().examine([TEMPLATE, VM, ARCHIVE, DISK])
    assert [each for each in checks if not each.ok or each.warn] == []
