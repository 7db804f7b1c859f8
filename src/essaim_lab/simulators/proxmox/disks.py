"""What storages do: allocate under their lock, copy as fast as they can, remove."""

from __future__ import annotations

from essaim_lab.simulators.proxmox.cluster import Cluster
from essaim_lab.simulators.proxmox.errors import PveError
from essaim_lab.simulators.proxmox.kernel import Process, Sleep, Station
from essaim_lab.simulators.proxmox.settings import GIB
from essaim_lab.simulators.proxmox.state import Guest, Storage, Task, to_text


def volume(cluster: Cluster, storage: Storage, vmid: int, base: str = "") -> str:
    """Name and make a disk as that kind of storage does, of a number nobody else has."""
    number = 0
    while True:
        name = f"vm-{vmid}-disk-{number}"
        if storage.settings.type == "dir":
            name = f"{vmid}/{name}.raw"
        file = f"{storage.name}:{base}/{name}" if base else f"{storage.name}:{name}"
        if file not in cluster.volumes:
            cluster.volumes[file] = vmid
            return file
        number += 1


def allocated(storage: Storage, node: str, seconds: float | None = None) -> Process:
    """Make a disk under the storage's lock, if there is room."""
    yield from _locked(storage, node, seconds)
    if storage.full:
        raise PveError(storage.full_text())


def _locked(storage: Storage, node: str, seconds: float | None = None) -> Process:
    """Work under the storage's lock."""
    hold = storage.lock(node).take(storage.settings.lock_timeout, storage.timeout_text())
    try:
        yield hold
        yield Sleep(storage.settings.alloc_seconds if seconds is None else seconds)
    finally:
        hold.give_back()


def copied(storage: Storage, node: str, size: int, task: Task) -> Process:
    """Fill a disk, sharing the storage with all others that copy."""
    yield from done_by(storage.station(node), storage.settings.copy_seconds * size / GIB)
    task.say(f"transferred {to_text(size)}iB of {to_text(size)}iB (100.00%)")


def done_by(station: Station, seconds: float) -> Process:
    """Let a station do a job; it is taken back when whoever gave it dies."""
    job = station.work(seconds)
    try:
        yield job
    finally:
        job.withdraw()


def removed(cluster: Cluster, guest: Guest, *, unreferenced: bool = False) -> Process:
    """Free all disks of the machine, each under its storage's lock.

    With `unreferenced` also those that carry its number and are not in its configuration.
    """
    files = [disk["file"] for disk in guest.disks().values()]
    if unreferenced:
        files += [f for f, its in cluster.volumes.items() if its == guest.vmid and f not in files]
    for file in files:
        name = file.partition(":")[0]
        if name in cluster.storages:
            storage = cluster.storages[name]
            yield from _locked(storage, guest.node, storage.settings.free_seconds)
        cluster.volumes.pop(file, None)


def check_unused_base(cluster: Cluster, guest: Guest) -> None:
    """Refuse to remove what linked clones are made of."""
    if not guest.template:
        return
    for disk in guest.disks().values():
        base = disk["file"]
        for other in cluster.guests.values():
            if other is not guest and any(
                each["file"].startswith(f"{base}/") for each in other.disks().values()
            ):
                raise PveError(f"base volume '{base}' is still in use by linked cloned")
