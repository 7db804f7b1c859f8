"""Whose that is which a VMID stands for, while it is made and after whoever made it died.

Until a machine is finished its configuration may say nothing, and a token that sees its pool alone
does not see it at all.  What tells are our reservation of the VMID, the written use of whoever
makes the machine, and the cluster's tasks: as long as one of ours may be making it, nobody begins
it again.
"""

from __future__ import annotations

import logging
import time

from essaim.drivers.proxmox import guests
from essaim.drivers.proxmox.api import ApiError
from essaim.drivers.proxmox.clerk import Clerk
from essaim.drivers.proxmox.cluster import Cluster, Guest, first_storage
from essaim.drivers.proxmox.holdings import Holdings
from essaim.drivers.proxmox.jobs import Job
from essaim.drivers.proxmox.refusals import Refusal
from essaim.model.errors import NotYetError
from essaim.model.names import MachineName

#: Locks of a machine that is not finished.
BEING_MADE = ("create", "clone")
#: Seconds for which what was asked for may still appear when no answer came.
_UNSURE = 15.0
#: Seconds between two looks at what another process has begun.
_LOOK = 1.0
#: Seconds until it is looked at again that has just changed.
_SOON = 0.1
_CLONE = " clone"

log = logging.getLogger(__name__)


class Ownership:
    """Tells what of a cluster is, or may become, a machine of this control plane."""

    def __init__(self, cluster: Cluster, clerk: Clerk, holdings: Holdings, plane: str) -> None:
        self._cluster, self._clerk, self._holdings = cluster, clerk, holdings
        self._plane = plane
        self._unanswered: dict[MachineName, float] = {}  # requests of this process, and when
        clerk.lost = self._lost
        clerk.uses.number = self._number
        clerk.uses.died = self._died
        clerk.uses.unanswered = self._is_unanswered

    def is_ours(self, guest: Guest) -> bool:
        """Whether a guest is finished and of this control plane."""
        return guests.plane_tag(self._plane) in guest.tags and guest.lock not in BEING_MADE

    def is_unsure(self, name: MachineName, number: int) -> bool:
        """Whether something of a machine may be, or come to be, under that id unseen."""
        return name in self._unanswered or self._holdings.is_aside(name, number)

    def forget(self, name: MachineName) -> None:
        """The machine is finished, or not wanted any more."""
        self._unanswered.pop(name, None)

    def claim(self, name: MachineName, number: int, *, taken: bool = False) -> Guest | None:
        """The guest under a machine's VMID, if it is the machine; None when that needs another.

        NotYetError as long as something of ours may be under way there.  `taken`: the cluster has
        refused the VMID.
        """
        found = self._cluster.find(number)
        if found is not None and self.is_ours(found):
            return found
        if not self._clerk.reap(f"{name}{_CLONE}"):
            raise NotYetError(f"{name}: {number} is being made by another process", after=_LOOK)
        found = self._cluster.find(number)
        if found is None:
            self._check_unseen(name, number, taken=taken)
            return None
        if self.is_ours(found):
            return found
        if not self._cluster.listing().online(found.node):
            self._holdings.set_aside(name, number)
            return None
        return self._judged(name, found)

    def _check_unseen(self, name: MachineName, number: int, *, taken: bool) -> None:
        if not taken:
            raise NotYetError(f"{name}: {number} is begun elsewhere", after=_LOOK)
        self.check_done(name, number, None)
        if not self._holdings.is_aside(name, number):
            log.info("%s: VMID %d is taken by a guest this token cannot see", name, number)
            self._holdings.refuse(number)

    def _judged(self, name: MachineName, found: Guest) -> Guest | None:
        config = self._cluster.its_config(found)
        plane, its = guests.owner(str(config.get("description") or "")) or ("", None)
        mine = (plane, its) == (self._plane, name)
        if its is not None and not mine:
            if plane == self._plane:  # the id is this machine's now: what is left goes
                self._holdings.set_aside(its, found.id)
            return None
        if config.get("lock") in BEING_MADE:
            self.check_done(name, found.id, found)
            if mine:
                self._holdings.set_aside(name, found.id)
            return None
        if mine and config.get("lock"):
            raise NotYetError(f"{name}: {found.id} is locked ({config['lock']})", after=_LOOK)
        if mine and not first_storage(config):  # cut short, and somebody took its lock off
            self._holdings.set_aside(name, found.id)
            return None
        return found if mine else None

    def check_done(self, name: MachineName, number: int, seen: Guest | None) -> None:
        """NotYetError while something of ours may be making that VMID; what died is set aside.

        `seen` is what was there before: what has ended since has changed it.
        """
        key, since = f"{name}{_CLONE}", self._unanswered.get(name)
        if not self._clerk.reap(key) or self._clerk.uses.is_being_made(number):
            raise NotYetError(f"{name}: {number} is being made", after=_LOOK)
        now = self._cluster.find(number)
        if (now and now.lock) != (seen and seen.lock):
            raise NotYetError(f"{name}: {number} has just been made", after=_SOON)
        if since is None:
            return
        seconds = time.monotonic() - since
        if self._clerk.uses.has_died(number, seconds):
            self._holdings.set_aside(name, number)
        elif seconds < _UNSURE:
            raise NotYetError(f"{name}: {number} was asked for, and no answer came", after=_LOOK)

    # What the clerk tells of what it cannot see

    def _lost(self, job: Job, error: ApiError) -> bool:
        """Remember that a task has died; True for a request that may have been carried out."""
        if job.number is None or error.kind is not Refusal.LOST:
            return False
        name = MachineName.parse(job.number[2])
        if job.upid:
            self._holdings.set_aside(name, job.number[3])
        elif error.code:  # the server was reached
            self._unanswered[name] = time.monotonic()
        return not job.upid and error.code != 0

    def _is_unanswered(self, key: str) -> bool:
        made = key.endswith(_CLONE)
        return made and MachineName.parse(key.removesuffix(_CLONE)) in self._unanswered

    def _number(self, key: str) -> int | None:
        if not key.endswith(_CLONE):
            return None
        return self._holdings.id_of(MachineName.parse(key.removesuffix(_CLONE)))

    def _died(self, key: str) -> None:
        number = self._number(key)
        if number is not None:
            self._holdings.set_aside(MachineName.parse(key.removesuffix(_CLONE)), number)
