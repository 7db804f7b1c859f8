"""Making and removing a machine, so that either may be cut short at any moment and begun again.

An id is reserved, then something is made under it whose description says whose it is once its
disk is there, then it is grown and set up; the tags come last.  Whatever has our description and
not our tags is half made, and is finished or removed.  What says nothing is judged by `ownership`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from essaim.drivers.proxmox import guests
from essaim.drivers.proxmox.api import Api, ApiError
from essaim.drivers.proxmox.clerk import Clerk
from essaim.drivers.proxmox.cluster import Cluster, Guest, read_tags
from essaim.drivers.proxmox.disk_size import DiskSize
from essaim.drivers.proxmox.guests import Wanted
from essaim.drivers.proxmox.holdings import Held, Holdings
from essaim.drivers.proxmox.jobs import Job
from essaim.drivers.proxmox.leftovers import Leftovers
from essaim.drivers.proxmox.making import Making
from essaim.drivers.proxmox.ownership import BEING_MADE, Ownership
from essaim.drivers.proxmox.refusals import Refusal
from essaim.drivers.proxmox.wishes import Extras
from essaim.model.errors import NotYetError
from essaim.model.machines import Seed
from essaim.model.names import MachineName
from essaim.model.stacks import Image, Machine, Network


class Machines:
    """The machines of one control plane on one cluster."""

    def __init__(
        self,
        api: Api,
        cluster: Cluster,
        clerk: Clerk,
        *,
        reservations: Held,
        plane: str,
        extras: Extras | None = None,
    ) -> None:
        self._api, self._cluster, self._clerk = api, cluster, clerk
        self.holdings = Holdings(reservations, cluster, api.settings, plane)
        self._plane, self._extras, self._settings = plane, extras, api.settings
        self.making = Making(api, cluster, clerk, plane)
        self._disk_size = DiskSize(api, cluster, clerk, self.making.source_of)
        self._made: dict[MachineName, Guest] = {}  # not yet set up
        self._on: set[MachineName] = set()  # which run, whatever the listing says
        self.ownership = Ownership(cluster, clerk, self.holdings, plane)
        self.is_ours = self.ownership.is_ours
        self.leftovers = Leftovers(
            cluster,
            clerk,
            self.holdings,
            self.ownership,
            plane=plane,
            extras=extras,
            remove=self.remove,
        )
        clerk.sweep = self.leftovers.sweep

    def is_its(self, guest: Guest, name: MachineName) -> bool:
        """Whether a guest is that machine, as it says now: a listing may be old."""
        its = self._cluster.its_config(guest)
        if guests.plane_tag(self._plane) in read_tags(its.get("tags")):
            return True
        return guests.owner(str(its.get("description") or "")) == (self._plane, name)

    def make(self, machine: Machine, network: Network, image: Image, seed: Seed) -> None:
        """Make a machine, or go on with it; NotYetError as long as there is something to wait for.

        Nothing if it is there.
        """
        name = machine.name
        guests.source_of(image)
        begun = self._begun(name)
        if begun is None:
            self.holdings.address(machine, network)
        wanted = Wanted(
            machine=machine,
            network=network,
            image=image,
            seed=seed,
            id=begun or self.holdings.id(name),
            card=self.holdings.card(name, begun=begun is not None),
        )
        with self.meaning(f"{name}: making {wanted.id}"):
            while not self._go_on(wanted):
                wanted = replace(wanted, id=self.holdings.id(name, anew=True))
        self._settle(name)

    def _begun(self, name: MachineName) -> int | None:
        """The id under which the machine is being made here, so that nobody need be asked."""
        job, made = self._clerk.get(f"{name} clone"), self._made.get(name)
        if job is not None and job.number is not None:
            return job.number[-1]
        return made.id if made else None

    def _settle(self, name: MachineName) -> None:
        self._made.pop(name, None)
        self.ownership.forget(name)

    def _go_on(self, wanted: Wanted) -> bool:
        """Go on with a machine under that id; False when the id is somebody else's."""
        made = self._made.get(wanted.name)
        if made is None or made.id != wanted.id:
            key = f"{wanted.name} clone"
            there = self._cluster.listing().guests.get(wanted.id)
            if there is not None and not self._clerk.get(key):
                return self._take_up(wanted)
            try:
                done = self._clerk.do(self.making.job(key, wanted))
            except ApiError as error:
                if error.kind is not Refusal.TAKEN:
                    raise
                return self._take_up(wanted, taken=True)
            made = self.making.expected(wanted.name) if done else None
            if made is None or made.id != wanted.id:
                return self._take_up(wanted)
            self._made[wanted.name] = made
        self._finish(wanted, made)
        return True

    def _take_up(self, wanted: Wanted, *, taken: bool = False) -> bool:
        """Go on with what is there under that id; False when the machine needs another one."""
        found = self.ownership.claim(wanted.name, wanted.id, taken=taken)
        if found is None:
            return False
        read = partial(self._cluster.config, found)
        if not self.is_ours(found) or guests.has_moved(self._settings, wanted, read):
            self._finish(wanted, found)
        return True

    def _finish(self, wanted: Wanted, found: Guest) -> None:
        """Grow it and set it up; each is done once, or again with the same result."""
        self._disk_size.grow(wanted, found)
        given = guests.config(self._settings, self._plane, wanted, found.kind)
        if self._extras is not None:
            given |= self._extras.apply(found, wanted)
        self._api.put(f"{found.path}/config", **given)
        self._disk_size.forget(wanted.name)
        self.making.finished(wanted.name, found)

    def remove(self, name: MachineName, found: Guest, key: str = "") -> None:
        """Remove a guest and its disks; NotYetError until that is done."""
        if found.lock in BEING_MADE and not key:
            self.ownership.check_done(name, found.id, found)
            self.holdings.set_aside(name, found.id)
            return
        gone = key or f"{name} destroy"
        off = found.status == "stopped" and name not in self._on
        off = off and not self._clerk.get(f"{name} off")
        if not self._clerk.get(gone) and found.kind == "qemu" and not off:
            self._power_off(name, found)
        if not self._clerk.get(gone) and self._extras is not None:
            self._extras.undo(found)
        force = {"force": 1} if found.kind == "lxc" else {}
        given = {"purge": 1, "destroy-unreferenced-disks": 1, **force}
        job = Job(
            key=gone,
            what=f"removes {found.id}",
            kind=f"destroy {found.kind}",
            begin=lambda: str(self._api.delete(found.path, **given)),
            gates=(self.making.destroy_gate(found.node),),
        )
        try:
            if not self._clerk.do(job):
                self._clerk.reap(gone)
                raise NotYetError(f"{name}: is being removed elsewhere", after=1.0)
        except ApiError as error:
            if error.kind is Refusal.RUNNING:
                self._on.add(name)
                self._power_off(name, found)  # the listing was older than its start
                raise NotYetError(f"{name}: {found.id} was running", after=0.1) from error
            if error.kind is not Refusal.GONE:
                raise

    def _power_off(self, name: MachineName, found: Guest) -> None:
        job = Job(
            key=f"{name} off",
            what=f"powers {found.id} off",
            kind="stop",
            begin=lambda: str(self._api.post(f"{found.path}/status/stop")),
        )
        try:
            self._clerk.do(job)
        except ApiError as error:
            if error.kind is not Refusal.STOPPED:
                raise
        self._on.discard(name)

    def removed(self, name: MachineName) -> bool:
        """Whether the machine has just been removed here; NotYetError while that goes on."""
        try:
            job = self._clerk.get(f"{name} destroy")
            return job is not None and self._clerk.do(job)
        except ApiError as error:
            if error.kind is Refusal.RUNNING:  # the listing was older than its start
                self._on.add(name)
                return False
            if error.kind is Refusal.GONE:
                return True
            raise

    def forget(self, name: MachineName, number: int, *, surely: bool) -> None:
        """Give up all the machine had reserved; `surely`: it was there, and nobody makes it.

        Otherwise another process may be about to make it under that number, and is stopped by the
        release, or has passed before: then what it makes is set aside, and removed.
        """
        self._made.pop(name, None)
        self._disk_size.forget(name)
        unsure = self.ownership.is_unsure(name, number)
        self.making.forget(name)
        self._clerk.clear(str(name))
        if not surely:
            self.holdings.set_aside(name, number)
        self.holdings.release(name)
        if not surely or unsure:
            self.leftovers.sweep_one(name, number, unsure=unsure)
        self._settle(name)
        self.leftovers.sweep_of(name)

    @contextmanager
    def meaning(self, what: str) -> Iterator[None]:
        """Errors of the API as ours; what is locked is only not ready yet."""
        try:
            yield
        except ApiError as error:
            if error.kind is Refusal.LOCKED:
                raise NotYetError(f"{what}: {error.text}", after=1.0) from error
            if error.kind is Refusal.LOST:
                self._cluster.doubt()
            raise error.ours(self._settings.site, what) from error
