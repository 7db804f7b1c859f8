"""Which guest a machine is, and whether it is on: also what no listing shows yet."""

from __future__ import annotations

import time

from essaim.drivers.checks import check_name
from essaim.drivers.proxmox.api import Api
from essaim.drivers.proxmox.cluster import Cluster, Guest
from essaim.drivers.proxmox.machines import Machines
from essaim.model.errors import NotYetError, UnknownError
from essaim.model.names import MachineName

#: Seconds by which the listing's powers lag behind, at most.
_LAG = 20.0
#: Seconds until the HA manager is asked again: a fraction of its rounds.
_ROUND = 3.0


class Sights:
    """What is seen of the machines of one control plane on one cluster."""

    def __init__(self, api: Api, cluster: Cluster, machines: Machines) -> None:
        self._api, self._cluster, self._machines = api, cluster, machines
        self._powers: dict[int, tuple[bool, float]] = {}  # what we did that no listing shows yet

    def guest(self, name: MachineName) -> Guest:
        """The guest a machine is; UnknownError when there is none."""
        check_name(name)
        number = self._machines.holdings.id_of(name)
        if number is None:
            raise UnknownError(f"{name} does not exist")
        with self._machines.meaning(f"looking for {name}"):
            listing = self._cluster.listing()
            found = listing.guests.get(number)
            if found is None or not self._machines.is_ours(found):
                new = self._machines.making.new(name, number, listing)
                found = new or self._cluster.find(number)
        if found is None or not self._machines.is_ours(found):
            raise UnknownError(f"{name} does not exist")
        return found

    def runs(self, name: MachineName, guest: Guest) -> bool:
        """Whether it runs now, whatever an older listing says."""
        with self._machines.meaning(f"looking at {name}"):
            state: dict[str, str] = self._api.get(f"{guest.path}/status/current")
        return state.get("status") == "running"

    def settled(self, name: MachineName, guest: Guest, *, on: bool) -> None:
        """NotYetError until the power is as asked for, where only the HA manager changes it."""
        if guest.ha and self.runs(name, guest) != on:
            verb = "start" if on else "stop"
            what = f"{name}: waits for the cluster's HA manager to {verb} {guest.id} ({guest.ha})"
            hint = "if it does not, on a node: ha-manager status"
            raise NotYetError(what, after=_ROUND, hint=hint)

    def is_on(self, guest: Guest) -> bool:
        """Whether it runs, as the listing has it or as we know better."""
        known = self._powers.get(guest.id)
        if known is not None and time.monotonic() < known[1]:
            return known[0]
        return guest.status == "running"

    def know(self, guest: Guest, *, on: bool) -> None:
        """Take note of a power that listings will show only later."""
        self._powers[guest.id] = (on, time.monotonic() + _LAG)

    def forget(self, number: int) -> None:
        """Know nothing of that id's power any more."""
        self._powers.pop(number, None)
