"""What is left half made under ids that machines do not have any more, and how it goes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from essaim.drivers.proxmox import guests
from essaim.drivers.proxmox.api import ApiError
from essaim.drivers.proxmox.clerk import Clerk
from essaim.drivers.proxmox.cluster import Cluster, Guest, read_tags
from essaim.drivers.proxmox.holdings import Holdings
from essaim.drivers.proxmox.ownership import BEING_MADE, Ownership
from essaim.drivers.proxmox.wishes import Extras
from essaim.model.errors import EssaimError, NotYetError, RejectedError
from essaim.model.names import MachineName

#: Seconds after which a node that does not answer is asked again.
_AWAY = 15.0
_TYPED = {"qemu": "qm", "lxc": "pct"}

log = logging.getLogger(__name__)


class Leftovers:
    """Removes what was set aside; `remove` removes a guest, as NotYetErrors, under a key."""

    def __init__(
        self,
        cluster: Cluster,
        clerk: Clerk,
        holdings: Holdings,
        ownership: Ownership,
        *,
        plane: str,
        extras: Extras | None,
        remove: Callable[[MachineName, Guest, str], None],
    ) -> None:
        self._cluster, self._clerk, self._holdings = cluster, clerk, holdings
        self._ownership = ownership
        self._plane, self._extras, self._remove = plane, extras, remove
        self._told: set[int] = set()

    def sweep(self) -> None:
        """Remove what was set aside, as far as that is possible by now; tell people of the rest."""
        for number, name in self._holdings.aside().items():
            try:
                with suppress(NotYetError, ApiError):
                    self.sweep_one(name, number)
            except EssaimError as error:
                if number not in self._told:
                    self._told.add(number)
                    log.warning("%s; %s", error.what, error.hint)

    def sweep_of(self, name: MachineName) -> None:
        """Remove what was set aside of one machine; NotYetError while somebody still makes it.

        RejectedError when something is left that is not for us to remove.
        """
        for number, its in self._holdings.aside().items():
            if its == name:
                self.sweep_one(name, number)

    def sweep_one(self, name: MachineName, number: int, *, unsure: bool = True) -> None:
        """Remove what is left of a machine under an id; NotYetError until that is done.

        Without `unsure` nobody has ever asked for that id in vain: what we do not see is not ours.
        """
        if self._holdings.owners().get(number) == str(name):
            self._come_back(name, number)
            return
        if not self._clerk.reap(f"{name} clone"):
            raise NotYetError(f"{name}: {number} is still being made elsewhere", after=1.0)
        found = self._cluster.find(number)
        if found is not None:
            self._clear(name, found)
        elif unsure:
            self._ownership.check_done(name, number, None)
            if self._cluster.is_taken(number):
                raise _left(name, number)
        self._holdings.forget_aside(name, number)

    def _clear(self, name: MachineName, found: Guest) -> None:
        """Remove a guest if it is what is left: another machine may have that id by now."""
        if not self._cluster.listing().online(found.node):
            raise NotYetError(f"{name}: waits for node {found.node}, which is away", after=_AWAY)
        nameless = self._is_nameless(found)
        if self.made_for(found) != name and not nameless:
            return
        if nameless and self._clerk.uses.somebody_makes(found.id):
            raise NotYetError(f"{name}: somebody makes {found.id}", after=_AWAY)
        self._take_off_lock(name, found)
        self._remove(name, found, f"{name} leftover {found.id}")

    def _come_back(self, name: MachineName, number: int) -> None:
        """Forget what was set aside if the machine is finished there after all.

        Not before: it is set aside first, and then given another id.
        """
        found = self._cluster.find(number)
        online = found is not None and self._cluster.listing().online(found.node)
        if found is not None and online and self._ownership.is_ours(found):
            self._holdings.forget_aside(name, number)

    def _take_off_lock(self, name: MachineName, found: Guest) -> None:
        """Take the lock off a guest that nobody works on; RejectedError when we may not."""
        if not found.lock:
            return
        self._ownership.check_done(name, found.id, found)
        if self._extras is None:
            raise _left(name, found.id, found)
        self._extras.unlock(found)

    def made_for(self, guest: Guest) -> MachineName | None:
        """The machine of this control plane that a guest says it is, unless it is finished."""
        its = self._cluster.its_config(guest)
        plane, name = guests.owner(str(its.get("description") or "")) or ("", None)
        tagged = guests.plane_tag(self._plane) in read_tags(its.get("tags"))
        finished = tagged and its.get("lock") not in BEING_MADE
        return name if plane == self._plane and not finished else None

    def _is_nameless(self, guest: Guest) -> bool:
        """Whether a guest died before it could say whose it is: it has a lock and no disk."""
        its = self._cluster.its_config(guest)
        written = set(its) - {"lock", "description", "digest"}
        return its.get("lock") in BEING_MADE and not written


def _left(name: MachineName, number: int, found: Guest | None = None) -> RejectedError:
    """Say what is left, and what an administrator types to remove it."""
    lines = [
        f"{word} unlock {number}; {word} destroy {number} --destroy-unreferenced-disks 1"
        for kind, word in _TYPED.items()
        if found is None or found.kind == kind
    ]
    where = f"node {found.node}" if found else "the node that has it"
    seen = "" if found else ", and this token cannot see it"
    look = "" if found else f"look whose VMID {number} is; if it is locked (create or clone), "
    return RejectedError(
        f"{name}: what made VMID {number} died; it is left half made and locked{seen}",
        hint=f"{look}type on {where}, as root: {' (a container: '.join(lines)}"
        + (")" if found is None else ""),
    )
