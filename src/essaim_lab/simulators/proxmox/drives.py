"""Drives of guests: new ones, imported ones, cloud-init drives, and how a disk grows."""

from __future__ import annotations

import re
from typing import Any

from essaim_lab.simulators.proxmox import rights
from essaim_lab.simulators.proxmox.cluster import Call, Cluster, answers
from essaim_lab.simulators.proxmox.disks import allocated, copied, volume
from essaim_lab.simulators.proxmox.errors import PveError, refused_parameters
from essaim_lab.simulators.proxmox.kernel import Process, Sleep
from essaim_lab.simulators.proxmox.schema import join, split
from essaim_lab.simulators.proxmox.settings import GIB
from essaim_lab.simulators.proxmox.state import Guest, Storage, Task, to_bytes, to_text
from essaim_lab.simulators.proxmox.volume_rights import check_storage

RESIZE_TIMEOUT = 10.0  #: seconds a resize waits for the guest's configuration file
_NEW_DISK = re.compile(r"([\w.-]+):(\d+(?:\.\d+)?)")
_NEW_CLOUD_INIT = re.compile(r"([\w.-]+):cloudinit")
_CLOUD_INIT = re.compile(r"[:/](?:vm-\d+-)?cloudinit(?:\.\w+)?$")


def is_cloud_init(value: Any) -> bool:
    """Whether a drive is the one that cloud-init reads its settings from."""
    return _CLOUD_INIT.search(split(str(value), "file").get("file", "")) is not None


def has_cloud_init(guest: Guest) -> bool:
    """Whether the guest has a cloud-init drive: without one it never sees ipconfig0 and sshkeys."""
    return any(is_cloud_init(value) for key, value in guest.conf.items() if _is_drive(key))


def cloned_cloud_init(value: Any, newid: int) -> str:
    """Name a clone's own cloud-init drive; other values stay as they are."""
    return re.sub(r"vm-\d+-cloudinit", f"vm-{newid}-cloudinit", str(value))


def discs_are_shared(cluster: Cluster, guest: Guest) -> bool:
    """Whether all nodes have what is in the guest's CD drives, its cloud-init drive among them."""
    discs = [str(value) for key, value in guest.conf.items() if _is_drive(key)]
    names = {disc.partition(":")[0] for disc in discs if "media=cdrom" in disc and ":" in disc}
    known = [cluster.storages[name] for name in names if name in cluster.storages]
    return all(storage.settings.shared for storage in known)


def _is_drive(key: str) -> bool:
    return rights.right("qemu", key) == "VM.Config.Disk"


def new_disks(cluster: Cluster, call: Call, guest: Guest, wanted: dict[str, Any]) -> Process:
    """Allocate what was asked for: STORAGE:GIB, STORAGE:0,import-from=…, STORAGE:cloudinit."""
    made: dict[str, Any] = {}
    for key, value in wanted.items():
        if rights.right(call.kind, key) != "VM.Config.Disk":
            continue
        parts = split(str(value), "file")
        parts["file"] = parts.pop("volume", "") or parts.get("file", "")
        if found := _NEW_DISK.fullmatch(parts["file"]):
            storage = _storage(cluster, call, key, found[1])
            source = parts.pop("import-from", "")
            size = _size(cluster, call, source, float(found[2]))
            yield from allocated(storage, call.node)
            file = volume(cluster, storage, guest.vmid)
            if source:
                yield from copied(storage, call.node, size, Task("", "", 0, 0, 0, "", "", ""))
            made[key] = join({**parts, "file": file, "size": to_text(size)}, "file")
        elif call.kind == "qemu" and (found := _NEW_CLOUD_INIT.fullmatch(parts["file"])):
            storage = cluster.storage(found[1], call.node)
            yield from allocated(storage, call.node)
            file = f"{storage.name}:vm-{guest.vmid}-cloudinit"
            made[key] = join({**parts, "file": file, "media": "cdrom"}, "file")
    return made


def _storage(cluster: Cluster, call: Call, key: str, name: str) -> Storage:
    check_storage(cluster, call.who, name)
    storage = cluster.storage(name, call.node)
    content = "images" if call.kind == "qemu" else "rootdir"
    if not storage.takes(content):
        raise refused_parameters({key: f"storage '{storage.name}' does not support {content}"})
    return storage


def _size(cluster: Cluster, call: Call, source: str, gib: float) -> int:
    """The bytes of a new disk; one that is imported has its image's, whatever was asked for."""
    if not source:
        return int(gib * GIB)
    if not cluster.settings.has(source, call.node):
        raise PveError(f"cannot import from '{source}' - could not get size of {source}")
    return cluster.settings.disk_images.get(source, 0) * GIB


@answers("PUT /nodes/{node}/lxc/{vmid}/resize")
def resize_ct(cluster: Cluster, call: Call) -> str:
    """Grow a container's volume: what is wrong is refused before a task begins, and again in it."""
    _new_size(cluster, call)

    def work(_task: Task) -> Process:
        yield from _resized(cluster, call)

    return cluster.begin(call, "resize", work)


@answers("PUT /nodes/{node}/qemu/{vmid}/resize")
def resize_vm(cluster: Cluster, call: Call) -> str:
    """Grow a virtual machine's disk: all that is wrong is said by the task."""
    cluster.guest(call)

    def work(_task: Task) -> Process:
        yield from _resized(cluster, call)

    return cluster.begin(call, "resize", work)


def _resized(cluster: Cluster, call: Call) -> Process:
    lock, text = cluster.file_lock(call.node, call.kind, call.vmid)
    if cluster.faults.lock_strikes("resize"):
        yield Sleep(RESIZE_TIMEOUT)
        raise PveError(text)
    hold = lock.take(RESIZE_TIMEOUT, text)
    try:
        yield hold
        size = _new_size(cluster, call)
        if size is None:
            return
        guest, key = cluster.guest(call), str(call.said["disk"])
        storage = cluster.storage(guest.disks()[key]["file"].partition(":")[0], call.node)
        yield from allocated(storage, call.node)
        cluster.touch(guest)
        guest.conf[key] = join({**guest.disks()[key], "size": to_text(size)}, "file")
    finally:
        hold.give_back()


def _new_size(cluster: Cluster, call: Call) -> int | None:
    """The size a disk shall have; None when it has it, which only a container is refused for."""
    guest = cluster.guest(call)
    guest.check_lock()
    key, size = str(call.said["disk"]), str(call.said["size"])
    if key in guest.conf and key not in guest.disks():
        raise PveError("you can't resize a cdrom")
    if key not in guest.disks():
        raise PveError(f"disk '{key}' does not exist")
    disk = guest.disks()[key]
    name = disk["file"].partition(":")[0]
    check_storage(cluster, call.who, name)
    old = to_bytes(disk.get("size", "0"))
    new = old + to_bytes(size[1:]) if size.startswith("+") else to_bytes(size)
    container = call.kind == "lxc"
    if new < old:
        raise PveError(
            "unable to shrink disk size" if container else "shrinking disks is not supported"
        )
    if new == old and container:
        raise PveError("disk is already at specified size")
    return None if new == old else new
