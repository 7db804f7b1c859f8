"""The lower bound: nothing is faster, and what is well planned comes close."""

from __future__ import annotations

import pytest

from essaim_lab.simulators.proxmox import (
    NodeSettings,
    Simulator,
    StorageSettings,
    VirtualClock,
    lower_bound,
)
from essaim_lab.simulators.proxmox.cluster import Request

NODE = NodeSettings(name="pve", start_seconds=2.0, boot_seconds=3.0, starts=3)
DISK = StorageSettings(name="disk", copy_seconds=1.0, copies=3, linked_seconds=0.5)
MACHINES = 24


class Plan:
    """Clones from every template that is free, starts what is there; at no cost of its own."""

    def __init__(self, kind: str, *, full: bool) -> None:
        self.clock = VirtualClock()
        self.sim = Simulator(nodes=2, copies=4, gib=4, node=NODE, storages=[DISK], clock=self.clock)
        self.kind, self.full = kind, full
        self.waits = list(range(101, 101 + MACHINES))
        self.begun: set[int] = set()

    def ask(self, path: str, **said) -> bool:
        found: list = []
        token = f"{self.sim.token}={self.sim.secret}"
        self.sim.cluster.submit(Request("POST", path, said, token=token), found.append)
        return found[0].status == 200

    def clone(self) -> None:
        guests = self.sim.cluster.guests
        for base in [vmid for vmid, guest in guests.items() if guest.template]:
            guest = guests[base]
            if guest.kind != self.kind or "lock" in guest.conf or not self.waits:
                continue
            tasks = self.sim.cluster.tasks.values()
            if sum(task.running and "clone" in task.type for task in tasks) < 4:
                path = f"/nodes/{guest.node}/{self.kind}/{base}/clone"
                newid = self.waits[0]
                if self.ask(path, newid=newid, full=int(self.full), target=f"pve{newid % 2 + 1}"):
                    self.waits.pop(0)

    def start(self) -> None:
        for vmid, guest in sorted(self.sim.cluster.guests.items()):
            if vmid < 1000 and not guest.conf.get("lock") and vmid not in self.begun:
                self.begun.add(vmid)
                self.ask(f"/nodes/{guest.node}/{self.kind}/{vmid}/status/start")

    def play(self) -> float:
        before = self.clock.now()
        while self.waits or any(task.running for task in self.sim.cluster.tasks.values()):
            self.clone()
            self.start()
            assert self.clock.jump()
            self.start()
        ends = {task.exitstatus for task in self.sim.cluster.tasks.values()}
        assert ends == {"OK"}
        on = sum(guest.running for guest in self.sim.cluster.guests.values())
        assert on == MACHINES
        return self.clock.now() - before


@pytest.mark.parametrize(
    ("kind", "full", "most"),
    [("lxc", True, 1.15), ("qemu", True, 1.15), ("lxc", False, 1.3), ("qemu", False, 1.3)],
)
def test_nothing_is_faster_than_the_bound_and_a_good_plan_comes_close(kind, full, most):
    plan = Plan(kind, full=full)
    took, bound = plan.play(), plan.sim.lower_bound(MACHINES, kind=kind, full=full)
    assert bound == lower_bound(plan.sim.settings, MACHINES, kind=kind, full=full)
    assert bound <= took <= most * bound


def test_the_bound_is_that_of_what_is_busiest():
    def bound(machines, **how):
        return lower_bound(Plan("lxc", full=True).sim.settings, machines, **how)

    assert bound(0) == 0.0
    assert bound(1) == 0.25 + 4.0 + 2.0
    # 24 copies of 4 s, three at a time, then a start.
    assert bound(24) == 24 * 4.0 / 3 + 2.0
    # One container template is cloned by one at a time.
    assert bound(24, template="9000") == 24 * 4.25 + 2.0
    assert bound(24, full=False) == 24 * 0.5 + 2.0
    # Starts are the bottleneck on one node: 24 of 3 s, three at a time.
    assert bound(24, kind="qemu", full=False, nodes=1) == 0.5 + 24 * 3.0 / 3
    assert bound(24, start=False) == 24 * 4.0 / 3
