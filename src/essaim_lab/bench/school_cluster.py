"""A school's cluster, simulated, and what became of those who made machines on it.

What takes how long is said here, once, for everybody who is measured on it.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim_lab.simulators.proxmox.settings import NodeSettings, Settings, StorageSettings, usual
from essaim_lab.simulators.proxmox.simulator import Simulator
from essaim_lab.simulators.proxmox.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator

    from essaim_lab.simulators.proxmox.clock import Clock

NODES = 5
STORAGE, TEMPLATE, POOL = "vol-ceph-1", "debian-gui", "students"
GIB = 8
#: Seconds to copy a GiB: 24 s for a container, when there is room.
COPY = 3.0
START, STARTS = 4.0, 4  #: seconds of a container's start; so many at full speed on each node
LISTING = 1.0  #: seconds that a listing of all guests takes, as with many disks on Ceph

_LOCKED = re.compile(r"is locked|got timeout|lock request timeout")
_DOUBLE = re.compile(r"already exists|File exists")


@dataclass(frozen=True, slots=True, kw_only=True)
class Like:
    """What clusters differ in: how many machines they can make at once, and why not more."""

    copies: int  #: of the template, on each node; a container's is cloned by one at a time
    clones: int  #: made by the storage at full speed; more share what it can do

    @property
    def templates(self) -> int:
        """Copies of the template in all."""
        return NODES * self.copies

    @property
    def most(self) -> int:
        """Clones that are made at once at full speed."""
        return min(self.templates, self.clones)

    @property
    def sentence(self) -> str:
        """What the cluster is like."""
        return (
            f"{NODES} nodes, {self.templates} copies of the template; a full clone "
            f"{COPY * GIB:.0f} s, {self.clones} at once on the storage; a start {START:.0f} s, "
            f"{STARTS} at once on a node; a listing {LISTING:.0f} s"
        )

    def settings(self) -> Settings:
        """The same, for the simulator."""
        disks = StorageSettings(name=STORAGE, copy_seconds=COPY, copies=self.clones)
        return usual(
            nodes=NODES,
            copies=self.templates,
            gib=GIB,
            storages=[disks],
            node=NodeSettings(name="pve", start_seconds=START, starts=STARTS),
            slow_listing=LISTING,
        )


#: Everybody waits for the templates, or for the storage.
SMALL, LARGE = Like(copies=1, clones=8), Like(copies=3, clones=12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of somebody's machines; seconds are simulated ones."""

    machines: int
    failed: int
    seconds: float  #: from the first request to the end of the last start
    calls: int  #: of the API
    locked: int  #: refused, or failed, because of a lock
    doubles: int  #: numbers that were taken already
    errors: dict[str, int]  #: everything else that failed

    @property
    def rate(self) -> float:
        """Machines that run, for each simulated minute."""
        return (self.machines - self.failed) / self.seconds * 60


class Cluster:
    """The simulator, and what it has seen."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim

    def bound(self, machines: int) -> float:
        """The fewest simulated seconds in which so many can be made.

        Of 600 on SMALL, each of 5 templates is cloned 120 times, one after the other, for 24 s of
        copying and 0.25 s under the storage's lock; the last one then starts for 4 s: 2914 s.  On
        LARGE the storage copies 12 at full speed, in whatever way it shares that: 600 * 24 / 12 s,
        and 4 s: 1204 s.  Nodes start 20 in 4 s, and the lock is taken 4 times in a second.
        """
        return self.sim.lower_bound(machines, full=True, template=TEMPLATE, storage=STORAGE)

    def asked(self) -> bool:
        """Whether anything was asked since the last outcome."""
        return bool(self.sim.cluster.tally.requests)

    def outcome(self, machines: int, began: float) -> Outcome:
        """Give what became of so many machines; counting begins anew."""
        with self.sim.clock.lock:
            tally, self.sim.cluster.tally = self.sim.cluster.tally, Tally()
            running = sum(guest.running for guest in self.sim.cluster.guests.values())
        wrong = dict(tally.refusals)
        for ends in tally.tasks.values():
            wrong |= {end: many for end, many in ends.items() if end != "OK"}
        locked = {text for text in wrong if _LOCKED.search(text)}
        doubles = {text for text in wrong if _DOUBLE.search(text)}
        return Outcome(
            machines=machines,
            failed=machines - running,
            seconds=max(0.0, tally.last - began),
            calls=sum(tally.requests.values()),
            locked=sum(wrong[text] for text in locked),
            doubles=sum(wrong[text] for text in doubles),
            errors={text: wrong[text] for text in wrong.keys() - locked - doubles},
        )


@contextmanager
def cluster(like: Like, clock: Clock) -> Iterator[Cluster]:
    """Give a cluster, whose time goes by as that clock says."""
    with Simulator(settings=like.settings(), clock=clock) as sim:
        yield Cluster(sim)
