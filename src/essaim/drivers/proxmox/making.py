"""How a machine comes to be: which template is cloned where, through which gates, told how."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from essaim.drivers.proxmox import guests, places
from essaim.drivers.proxmox.api import Api
from essaim.drivers.proxmox.clerk import Clerk
from essaim.drivers.proxmox.cluster import Cluster, Guest, Listing
from essaim.drivers.proxmox.guests import Wanted
from essaim.drivers.proxmox.jobs import Job
from essaim.drivers.proxmox.site_inventory import SiteInventory
from essaim.model.errors import NotYetError, RejectedError
from essaim.model.names import MachineName
from essaim.plan.limits import Gate

#: A container's template is locked while it is cloned: a second clone would only be refused.
_ALONE = 1
_MOST = 64
_FIRST = 4
#: Clones on a storage of which nothing is known: one of each copy of the template, but not more.
_COPIES = 16
_REMOVALS = 8
#: Seconds after which a node that does not answer is asked again.
_ANSWER = 10.0


class Making:
    """Plans the job that makes a machine.  Remembers where those go that are not there yet."""

    def __init__(self, api: Api, cluster: Cluster, clerk: Clerk, plane: str) -> None:
        self._api = api
        self._cluster = cluster
        self._clerk = clerk
        self._plane = plane
        self._settings = api.settings
        self.inventory = SiteInventory(api, cluster)
        self._lock = threading.Lock()
        self._coming: dict[MachineName, Guest] = {}
        self._cloned: dict[MachineName, Guest] = {}  # which template of each
        self._new: dict[MachineName, tuple[Guest, float]] = {}  # and since when

    def expected(self, name: MachineName) -> Guest | None:
        """What a machine will be, once its job is done; None when no job was planned here."""
        return self._coming.get(name)

    def source_of(self, name: MachineName) -> Guest | None:
        """The template a machine was cloned from; None when it was not cloned here."""
        return self._cloned.get(name)

    def finished(self, name: MachineName, guest: Guest) -> None:
        """The machine is there and ours, whatever an older listing says."""
        ours = frozenset({guests.plane_tag(self._plane)})
        self._new[name] = (replace(guest, tags=guest.tags | ours, lock=""), time.monotonic())

    def new(self, name: MachineName, number: int, listing: Listing) -> Guest | None:
        """A machine that was finished here since that listing was asked for."""
        guest, since = self._new.get(name, (None, 0.0))
        return guest if guest and guest.id == number and since > listing.at else None

    def forget(self, name: MachineName) -> None:
        """The machine is not wanted any more."""
        with self._lock:
            for known in (self._coming, self._cloned, self._new):
                known.pop(name, None)

    def job(self, key: str, wanted: Wanted) -> Job:
        """The job that makes the machine: the one there is, unless another line is shorter now."""
        known = self._clerk.get(key)
        if known is not None and not self._may_move(known):
            return known
        return self._plan(key, wanted)

    def _may_move(self, job: Job) -> bool:
        """Take a job out of its line if another template's is shorter: nodes differ, and fail."""
        if job.since or job.over or not job.rivals:
            return False
        lines = self._clerk.lines()
        return self._clerk.leave(job, min(lines[gate] for gate in job.rivals))

    def _plan(self, key: str, wanted: Wanted) -> Job:
        """How the machine is made: a clone, or something from the stock of the site."""
        source, what = guests.source_of(wanted.image)
        self.inventory.check(wanted.image, wanted.machine.labels)
        listing = self._cluster.listing()
        if source == "template":
            return self._clone(key, wanted, listing)
        kind, labels = guests.kind_of(wanted.image), wanted.machine.labels
        make = guests.container if kind == "lxc" else guests.machine
        given = make(self._settings, self._plane, wanted)
        storage = labels.get("storage") or self._settings.storage
        rooms, only = self._rooms_with(listing, wanted, [storage]), labels.get("node", "")
        nodes = [only] if only else list(rooms)
        volumes = self.inventory.nodes_with_volume(listing, str(what), nodes)
        node = places.roomiest({each: rooms[each] for each in volumes}, only)
        if source == "ostemplate":
            given["ostemplate"] = volumes[node]
        self._expect(wanted, kind, node)
        gates = (self._gate("storage", storage), self._gate("node", node))
        return Job(
            key=key,
            what=f"makes it from {what}",
            kind=f"create {what}",
            begin=lambda: str(self._api.post(f"nodes/{node}/{kind}", **given)),
            gates=gates,
            number=self._number(wanted),
            sources={storage: gates[0].name, "": gates[1].name},
            storage=storage,
        )

    def start_gate(self, node: str) -> Gate:
        """What starts of machines on a node pass."""
        most = self._settings.slots.get("start", _MOST)
        return Gate(f"{self._settings.site} start slot on node {node}", _FIRST, most)

    def destroy_gate(self, node: str) -> Gate:
        """What removals on a node pass: one that waits too long for its storage stays half done."""
        most = self._settings.slots.get("destroy", _REMOVALS)
        return Gate(f"{self._settings.site} destroy slot on node {node}", min(_FIRST, most), most)

    def _clone(self, key: str, wanted: Wanted, listing: Listing) -> Job:
        image, labels = wanted.image, wanted.machine.labels
        full = image.settings.get("clone") == "full"
        goal = (labels.get("storage") or self._settings.storage) if full else ""
        sources = self._sources(wanted, listing, goal)
        disks = [self._cluster.disks_of(source) for source in sources]
        goal = goal or disks[0].storage
        storages = frozenset({goal}).union(*(each.storages for each in disks))
        own, lines = {source.id: self._own(source) for source in sources}, self._clerk.lines()
        place = places.choose(
            sources,
            self._rooms_with(listing, wanted, storages),
            {number: float(lines[gate.name]) for number, gate in own.items()},
            anywhere=storages <= listing.shared,
            node=labels.get("node", ""),
            listing=listing,
        )
        source, node = place.source, place.node if place.moves else ""
        self._expect(wanted, source.kind, place.node)
        self._cloned[wanted.name] = source
        given = guests.clone(self._settings, self._plane, wanted, source.kind, node)
        gates = (
            own[source.id],
            self._disks(goal, len(sources)),
            self._gate("node", source.node),
        )
        return Job(
            key=key,
            what=f"clones {source.name or source.id}",
            kind=f"clone {source.id}",
            begin=lambda: str(self._api.post(f"{source.path}/clone", **given)),
            gates=gates,
            number=self._number(wanted),
            sources=_blame(gates, source, goal),
            storage=goal,
            rivals=tuple(gate.name for gate in own.values()),
        )

    def _sources(self, wanted: Wanted, listing: Listing, goal: str) -> list[Guest]:
        """The templates that can be cloned now, to a storage `goal` that their node must have."""
        image = wanted.image
        name = image.settings["template"]
        found = places.templates(listing, name, guests.kind_of(image), image.name)
        nodes = {source.node for source in found}
        having = self.inventory.nodes_with(listing, nodes, [goal] if goal else [])
        if not having:
            raise RejectedError(
                f"{wanted.name}: template {name} is on {', '.join(sorted(nodes))}, which does not"
                f" have storage {goal}",
                hint="a copy of the template, of the same name, on a node with that storage",
            )
        up = [source for source in found if source.node in having and listing.online(source.node)]
        if up:
            # One whose node is about to be restarted is only cloned when there is no other.
            return [one for one in up if not listing.nodes[one.node].maintenance] or up
        raise NotYetError(
            f"{wanted.name}: template {name}: {places.why_not(listing, nodes)}",
            after=_ANSWER,
            hint="a copy of the template on another node, of the same name, would be taken",
        )

    def _expect(self, wanted: Wanted, kind: str, node: str) -> None:
        with self._lock:
            self._coming[wanted.name] = Guest(id=wanted.id, kind=kind, node=node)

    def _number(self, wanted: Wanted) -> tuple[str, str, str, int]:
        return (self._settings.site, "vmid", str(wanted.name), wanted.id)

    def _own(self, source: Guest) -> Gate:
        """The gate of a template itself."""
        which = f"{source.name} ({source.id})" if source.name else str(source.id)
        most = _ALONE if source.kind == "lxc" else self._most()
        name = f"{self._settings.site} clone slot on template {which}"
        return Gate(name, first=min(_FIRST, most), most=most)

    def _gate(self, kind: str, name: str) -> Gate:
        return Gate(f"{self._settings.site} clone slot on {kind} {name}", _FIRST, self._most())

    def _disks(self, storage: str, copies: int) -> Gate:
        """The gate of a storage: who keeps many copies of a template wants many clones at once."""
        return replace(self._gate("storage", storage), first=min(max(_FIRST, copies), _COPIES))

    def _most(self) -> int:
        return self._settings.slots.get("clone", _MOST)

    def _rooms(self, listing: Listing) -> Mapping[str, float]:
        with self._lock:
            unlisted = [g for g in self._coming.values() if g.id not in listing.guests]
            coming = Counter(guest.node for guest in unlisted)
        return places.room(listing, coming, self._settings.nodes)

    def _rooms_with(
        self, listing: Listing, wanted: Wanted, storages: Collection[str]
    ) -> Mapping[str, float]:
        """The room on nodes that have these storages and the machine's bridge."""
        rooms, labels = self._rooms(listing), wanted.machine.labels
        bridge = labels.get("bridge") or self._settings.bridge
        fit = self.inventory.nodes_with(listing, rooms, storages, bridge)
        if rooms and not fit:
            raise RejectedError(
                f"{wanted.name}: no node that is up has bridge {bridge} and"
                f" storage {', '.join(sorted(storages))}",
                hint="see nodes:, bridge: and storage: in the site file, and each storage's Nodes",
            )
        only = labels.get("node", "")
        if not rooms or (only in listing.nodes and only not in fit):
            nodes = [only] if only else self._settings.nodes or listing.nodes
            raise NotYetError(f"{wanted.name}: {places.why_not(listing, nodes)}", after=_ANSWER)
        return {node: room for node, room in rooms.items() if node in fit}


def _blame(gates: tuple[Gate, Gate, Gate], source: Guest, storage: str) -> dict[str, Any]:
    """Which gate let too many pass when something of that name was locked."""
    own, disks, node = (gate.name for gate in gates)
    return {storage: disks, str(source.id): own, "guest": own, "": node}
