"""Cloning, with the locks of the real thing.

A virtual machine's clone holds the source's lock file shared and the new number's alone, each
waited for one second, while it copies.  Until its first disk is copied the new configuration is a
comment and `lock: clone`; the lock goes, it moves to its node and joins its pool at the very end.
A container's clone marks the source `lock: disk` before it answers: a second one at the same time
is refused.  Its configuration is whole from the first moment; it joins its pool after its disks.
"""

from __future__ import annotations

from typing import Any

from essaim_lab.simulators.proxmox.cluster import Call, Cluster, answers
from essaim_lab.simulators.proxmox.disks import allocated, copied, removed, volume
from essaim_lab.simulators.proxmox.drives import (
    cloned_cloud_init,
    discs_are_shared,
    is_cloud_init,
)
from essaim_lab.simulators.proxmox.errors import PveError, refused_parameters, refused_permission
from essaim_lab.simulators.proxmox.kernel import Process, Sleep
from essaim_lab.simulators.proxmox.network import check_bridge
from essaim_lab.simulators.proxmox.schema import join, split
from essaim_lab.simulators.proxmox.state import Guest, Task, to_bytes

CLONE_TIMEOUT = 1.0
#: What a virtual machine is configured to be until its first disk is there.
TEMPORARY = {"description": " qmclone temporary file", "lock": "clone"}
SNAPSHOT_KEYS = ("snapshots", "parent", "snaptime", "snapstate", "vmstate", "template", "lock")


@answers("POST /nodes/{node}/qemu/{vmid}/clone")
def clone_vm(cluster: Cluster, call: Call) -> str:
    """Check what can be known now; locks are for the task."""
    _check_qemu(cluster, call)
    running = cluster.guest(call).running

    def work(task: Task) -> Process:
        source, shared_text = cluster.file_lock(call.node, "qemu", call.vmid)
        target, text = cluster.file_lock(call.node, "qemu", call.said["newid"])
        if cluster.faults.lock_strikes(task.type):
            yield Sleep(CLONE_TIMEOUT)
            raise PveError(text)
        first = source.take(CLONE_TIMEOUT, shared_text, shared=not running)
        try:
            yield first
            second = target.take(CLONE_TIMEOUT, text)
            try:
                yield second
                yield from _clone_vm(cluster, call, task)
            finally:
                second.give_back()
        finally:
            first.give_back()

    return cluster.begin(call, "qmclone", work)


def _check_qemu(cluster: Cluster, call: Call) -> Guest:
    said = call.said
    _check_request(cluster, call, "images")
    source = cluster.guest(call)
    source.check_lock()
    _check_source(cluster, call, source)
    if "format" in said and not _full(call, source):
        raise PveError("parameter 'format' not allowed for linked clones")
    other = cluster.guests.get(said["newid"])
    if other and other.node == call.node:
        raise PveError(f"unable to create VM {said['newid']}: config file already exists")
    return source


def _check_request(cluster: Cluster, call: Call, content: str) -> None:
    said = call.said
    if "pool" in said and said["pool"] not in cluster.pools:
        raise refused_permission(f"pool '{said['pool']}' does not exist")
    target = said.get("target", call.node)
    if target not in cluster.nodes:
        raise PveError(f"no such cluster node '{target}'")
    if "storage" in said:
        storage = cluster.storage(said["storage"], call.node)
        if not storage.takes(content):
            kind = "vm images" if content == "images" else "container directories"
            text = f"storage '{storage.name}' does not support {kind}"
            raise refused_parameters({"storage": text})
        if target != call.node:
            cluster.storage(said["storage"], target)
        if target != call.node and not storage.settings.shared:
            raise PveError(f"can't clone to non-shared storage '{storage.name}'")


def _full(call: Call, source: Guest) -> bool:
    return bool(call.said.get("full", not source.template))


def _check_source(cluster: Cluster, call: Call, source: Guest) -> None:
    """Refuse what the disks and networks of the source do not allow."""
    said, full = call.said, _full(call, source)
    if "storage" in said and not full:
        raise PveError("parameter 'storage' not allowed for linked clones")
    snapname = said.get("snapname")
    if snapname and snapname not in source.snapshots:
        raise PveError(f"snapshot '{snapname}' does not exist")
    shared = _check_disks(cluster, call, source, linked=not full)
    for key, value in source.conf.items():
        if key.startswith("net"):
            check_bridge(cluster, call.who, str(value))
    if said.get("target", call.node) != call.node and not shared:
        raise PveError(
            f"can't clone {source.word} to node '{said['target']}' ({source.word} uses local "
            "storage)"
        )


def _check_disks(cluster: Cluster, call: Call, source: Guest, *, linked: bool) -> bool:
    """Refuse disks that cannot be cloned; whether all are on shared storages."""
    shared = discs_are_shared(cluster, source)
    for key, disk in source.disks().items():
        file = disk["file"]
        if file.startswith("/"):
            kind = "device" if file.startswith("/dev/") else "bind"
            raise PveError(f"unable to clone mountpoint '{key}' (type {kind})")
        name = call.said.get("storage") or file.partition(":")[0]
        shared = cluster.storage(name, call.node).settings.shared and shared
        cluster.access.need(call.who, f"/storage/{name}", "Datastore.AllocateSpace")
        if linked and not source.template and "snapname" not in call.said:
            raise PveError(
                f"Linked clone feature is not supported for '{file}' ({key})"
                if call.kind == "qemu"
                else f"Linked clone feature for '{file}' is not available"
            )
    return shared


def _copy_of(cluster: Cluster, call: Call, source: Guest, lock: str) -> Guest:
    """The new machine as it begins: everything but the disks, with cards of its own."""
    base = source.snapshots[call.said["snapname"]] if "snapname" in call.said else source.conf
    conf: dict[str, Any] = {}
    disks = source.disks()
    for key, value in base.items():
        if key in SNAPSHOT_KEYS or key in disks or key.startswith("unused"):
            continue
        conf[key] = _new_card(cluster, str(value)) if key.startswith("net") else value
        if is_cloud_init(value):
            conf[key] = cloned_cloud_init(value, call.said["newid"])
    conf["lock"] = lock
    if call.said.get("description"):
        conf["description"] = call.said["description"]
    guest = Guest(call.said["newid"], call.kind, call.node, conf)
    guest.keys = source.keys
    return guest


def _new_card(cluster: Cluster, text: str) -> str:
    parts = split(text)
    for key in parts:
        if key == "hwaddr" or parts[key].count(":") == 5:  # noqa: PLR2004 - a MAC has six parts
            parts[key] = cluster.new_mac()
    return join(parts)


def _clone_vm(cluster: Cluster, call: Call, task: Task) -> Process:
    newid = call.said["newid"]
    source = _check_qemu(cluster, call)  # again: it may have changed while we waited
    if newid in cluster.guests:
        folder = f"/etc/pve/nodes/{call.node}/qemu-server"
        raise PveError(f"close (rename) atomic file '{folder}/{newid}.conf' failed: File exists")
    guest = _copy_of(cluster, call, source, "clone")
    guest.conf["name"] = call.said.get("name") or f"Copy-of-VM-{source.name}"
    whole, guest.conf = guest.conf, dict(TEMPORARY)
    cluster.add(guest)
    try:
        yield from _disks(cluster, call, task, guest, whole)
    except PveError as error:
        yield Sleep(1.0)
        yield from removed(cluster, guest, unreferenced=True)
        cluster.remove(guest)
        raise PveError(f"clone failed: {error.message}") from error
    _settle(cluster, call, guest)
    _join_pool(cluster, call, guest)


def _settle(cluster: Cluster, call: Call, guest: Guest) -> None:
    cluster.touch(guest)
    guest.conf.pop("lock", None)
    guest.node = call.said.get("target", call.node)


def _join_pool(cluster: Cluster, call: Call, guest: Guest) -> None:
    if "pool" in call.said and call.said["pool"] in cluster.pools:
        cluster.into_pool(call.said["pool"], guest.vmid)


def _disks(
    cluster: Cluster, call: Call, task: Task, guest: Guest, whole: dict[str, Any]
) -> Process:
    """Copy or link every disk; each that is there is written with all the rest."""
    source = cluster.guests[call.vmid]
    full = _full(call, source)
    for key, disk in source.disks().items():
        name = call.said.get("storage") or disk["file"].partition(":")[0]
        storage = cluster.storage(name, call.node)
        size = to_bytes(disk.get("size", "0"))
        what = "full" if full else "linked"
        kind = "drive" if call.kind == "qemu" else "mountpoint" if full else "mount point"
        task.say(f"create {what} clone of {kind} {key} ({disk['file']})")
        if full:
            yield from allocated(storage, call.node)
            file = volume(cluster, storage, guest.vmid)
            yield from copied(storage, call.node, size, task)
        else:
            yield from allocated(storage, call.node, storage.settings.linked_seconds)
            base = disk["file"].partition(":")[2].rpartition("/")[2]
            file = volume(cluster, storage, guest.vmid, base)
        whole[key] = join({**disk, "file": file}, "file")
        guest.conf = whole


@answers("POST /nodes/{node}/lxc/{vmid}/clone")
def clone_ct(cluster: Cluster, call: Call) -> Process:
    """Mark both machines, then let a task copy."""
    _check_request(cluster, call, "rootdir")
    newid = call.said["newid"]
    lock, text = cluster.file_lock(call.node, "lxc", call.vmid)
    hold = lock.take(10.0, text)
    try:
        yield hold
        source = cluster.guest(call)
        source.check_lock()
        source.conf["lock"] = "disk"
    finally:
        hold.give_back()
    try:
        target, text = cluster.file_lock(call.node, "lxc", newid)
        mine = target.take(5.0, text)
        try:
            yield mine
            cluster.check_unused(newid)
            guest = _prepared(cluster, call, source)
            cluster.add(guest)
        finally:
            mine.give_back()
    except PveError:
        source.conf.pop("lock", None)
        raise
    return cluster.begin(call, "vzclone", lambda task: _clone_ct(cluster, call, task, guest))


def _prepared(cluster: Cluster, call: Call, source: Guest) -> Guest:
    _check_source(cluster, call, source)
    if _full(call, source) and source.running and "snapname" not in call.said:
        raise PveError("Full clone of a running container is only possible from a snapshot")
    guest = _copy_of(cluster, call, source, "create")
    if call.said.get("hostname"):
        guest.conf["hostname"] = call.said["hostname"]
    return guest


def _clone_ct(cluster: Cluster, call: Call, task: Task, guest: Guest) -> Process:
    source = cluster.guests[call.vmid]
    try:
        _strike(cluster, call, task, source)
        yield from _disks(cluster, call, task, guest, guest.conf)
        _join_pool(cluster, call, guest)
    except PveError as error:
        source.conf.pop("lock", None)
        yield Sleep(1.0)
        yield from removed(cluster, guest, unreferenced=True)
        cluster.remove(guest)
        raise PveError(f"clone failed: {error.message}") from error
    source.conf.pop("lock", None)
    _settle(cluster, call, guest)


def _strike(cluster: Cluster, call: Call, task: Task, source: Guest) -> None:
    """Perhaps wait for the storage's lock in vain."""
    if cluster.faults.lock_strikes(task.type):
        name = call.said.get("storage") or next(iter(source.disks().values()))["file"]
        raise PveError(cluster.storage(name.partition(":")[0], call.node).timeout_text())
