"""What is left half made under ids that machines do not have any more, and how it goes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from essaim.drivers.proxmox import guests, tasks
from essaim.drivers.proxmox.api import Api, ApiError
from essaim.drivers.proxmox.clerk import Clerk
from essaim.drivers.proxmox.cluster import Cluster, Guest, read_tags
from essaim.drivers.proxmox.holdings import Holdings
from essaim.drivers.proxmox.wishes import Extras
from essaim.model.errors import EssaimError, NotYetError
from essaim.model.names import MachineName

#: Locks of a machine that is not finished.
BEING_MADE = ("create", "clone")


class Leftovers:
    """Removes what was set aside; `remove` removes a guest, as NotYetErrors, under a key."""

    def __init__(
        self,
        api: Api,
        cluster: Cluster,
        clerk: Clerk,
        holdings: Holdings,
        *,
        plane: str,
        extras: Extras | None,
        remove: Callable[[MachineName, Guest, str], None],
    ) -> None:
        self._api, self._cluster, self._clerk, self._holdings = api, cluster, clerk, holdings
        self._plane, self._extras, self._remove = plane, extras, remove

    def sweep(self) -> None:
        """Remove what was set aside, as far as that is possible by now."""
        for number, name in self._holdings.aside().items():
            with suppress(EssaimError, ApiError):
                self.sweep_one(name, number)

    def sweep_of(self, name: MachineName) -> None:
        """Remove what was set aside of one machine; NotYetError while somebody still makes it."""
        for number, its in self._holdings.aside().items():
            if its == name:
                self.sweep_one(name, number)

    def sweep_one(self, name: MachineName, number: int) -> None:
        """Remove what is left of a machine under an id; NotYetError until that is done."""
        if self._holdings.owners().get(number) == str(name):
            self._come_back(name, number)
            return
        if not self._clerk.reap(f"{name} clone"):
            raise NotYetError(f"{name}: {number} is still being made elsewhere", after=1.0)
        found = self._cluster.find(number)
        if found is not None and not self._cluster.listing().online(found.node):
            return
        # Another machine may have that id by now, and wait for it.
        if found is not None and self.made_for(found) == name:
            if found.lock and not self._unlocked(found):
                return
            self._remove(name, found, f"{name} leftover {number}")
        self._holdings.forget_aside(name, number)

    def _come_back(self, name: MachineName, number: int) -> None:
        """Forget what was set aside if the machine is finished there after all.

        Not before: it is set aside first, and then given another id.
        """
        found = self._cluster.find(number)
        online = found is not None and self._cluster.listing().online(found.node)
        if found is not None and online and self.made_for(found) is None:
            self._holdings.forget_aside(name, number)

    def _unlocked(self, found: Guest) -> bool:
        """Take the lock off a guest that nobody works on; False when that is not for us to do."""
        nodes = self._cluster.listing().nodes
        if not tasks.copying(self._api, found.node):
            # What makes it may run where its template is.
            if self._extras is None or any(tasks.copying(self._api, node) for node in nodes):
                return False
            self._extras.unlock(found)
        return True

    def made_for(self, guest: Guest) -> MachineName | None:
        """The machine of this control plane that a guest says it is, unless it is finished."""
        its = self._cluster.its_config(guest)
        plane, name = guests.owner(str(its.get("description") or "")) or ("", None)
        tagged = guests.plane_tag(self._plane) in read_tags(its.get("tags"))
        finished = tagged and its.get("lock") not in BEING_MADE
        return name if plane == self._plane and not finished else None
