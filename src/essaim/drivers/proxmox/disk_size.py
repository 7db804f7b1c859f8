"""The size of a machine's disk: grown once after the machine was made, and never shrunk."""

from __future__ import annotations

from collections.abc import Callable

from essaim.drivers.proxmox import boot_disk, guests
from essaim.drivers.proxmox.api import Api, ApiError
from essaim.drivers.proxmox.boot_disk import Disks
from essaim.drivers.proxmox.clerk import Clerk
from essaim.drivers.proxmox.cluster import Cluster, Guest
from essaim.drivers.proxmox.guests import Wanted
from essaim.drivers.proxmox.jobs import Job
from essaim.drivers.proxmox.refusals import is_large_enough
from essaim.model.errors import RejectedError
from essaim.model.names import MachineName

_GIB = 1 << 30
#: The disk of a virtual machine that is made from an image; see `guests.machine`.
_IMPORTED = Disks(boot="scsi0")


class DiskSize:
    """Grows disks to the size asked for; `source_of` says what a machine was cloned from."""

    def __init__(
        self,
        api: Api,
        cluster: Cluster,
        clerk: Clerk,
        source_of: Callable[[MachineName], Guest | None],
    ) -> None:
        self._api, self._cluster, self._clerk, self._source_of = api, cluster, clerk, source_of
        self._grown: dict[MachineName, int] = {}  # id under which the disk has its size

    def grow(self, wanted: Wanted, found: Guest) -> None:
        """Give the disk its size; NotYetError until it has it.  Nothing if it is that large."""
        asked = wanted.machine.size.disk * _GIB
        if not asked or not guests.grows(wanted) or self._grown.get(wanted.name) == found.id:
            return
        disks = self._disks(wanted, found)
        if not disks.boot:
            raise RejectedError(
                f"{wanted.name}: {found.id} has no disk to boot from, so it cannot be grown",
                hint="give the template a disk, and name it in its boot order",
            )
        if disks.size < asked:
            self._resize(wanted, found, disks.boot)
        # What follows may have to be done again, and a second resize would be refused.
        self._grown[wanted.name] = found.id

    def forget(self, name: MachineName) -> None:
        """The machine is finished, or not wanted any more."""
        self._grown.pop(name, None)

    def _disks(self, wanted: Wanted, found: Guest) -> Disks:
        """The disks as they are: those of the template, unless another process cloned it."""
        if guests.source_of(wanted.image)[0] == "disk":
            return _IMPORTED
        source = self._source_of(wanted.name)
        return self._cluster.disks_of(source) if source else self._own(found)

    def _own(self, found: Guest) -> Disks:
        return boot_disk.read(self._cluster.config(found))

    def _resize(self, wanted: Wanted, found: Guest, disk: str) -> None:
        size = f"{wanted.machine.size.disk}G"

        def begin() -> str:
            return str(self._api.put(f"{found.path}/resize", disk=disk, size=size) or "")

        job = Job(key=f"{wanted.name} resize", what="grows its disk", kind="resize", begin=begin)
        try:
            self._clerk.do(job)
        except ApiError as error:
            if not is_large_enough(error.text):
                raise
