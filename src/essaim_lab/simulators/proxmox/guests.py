"""Machines: made, configured, resized, made a template of, removed."""

from __future__ import annotations

import re
from typing import Any

from essaim_lab.simulators.proxmox import rights
from essaim_lab.simulators.proxmox.cluster import ROOT, Call, Cluster, answers
from essaim_lab.simulators.proxmox.disks import check_unused_base, copied, removed
from essaim_lab.simulators.proxmox.drives import new_disks
from essaim_lab.simulators.proxmox.errors import PveError, refused_parameters, refused_permission
from essaim_lab.simulators.proxmox.high_availability import check_destroy
from essaim_lab.simulators.proxmox.kernel import Process, Sleep
from essaim_lab.simulators.proxmox.power import starting
from essaim_lab.simulators.proxmox.schema import join, split
from essaim_lab.simulators.proxmox.settings import GIB
from essaim_lab.simulators.proxmox.state import Guest, Task

CONFIG_TIMEOUT = 10.0
UNPACK_GIB = 1  #: what a container's archive holds
IMPORT_GIB = 3  #: what a disk image holds
_NOT_CONFIG = {"node", "vmid", "delete", "revert", "digest", "skiplock", "force", "pool", "start",
               "storage", "ostemplate", "password", "ssh-public-keys", "restore", "unique",
               "background_delay", "archive", "bwlimit", "ignore-unpack-errors"}  # fmt: skip


def _config(call: Call) -> dict[str, Any]:
    return {key: value for key, value in call.said.items() if key not in _NOT_CONFIG}


def _with_card(cluster: Cluster, kind: str, text: str) -> str:
    """Give a card its address if it was not told one."""
    if kind == "lxc":
        parts = split(text)
        parts.setdefault("hwaddr", cluster.new_mac())
        return join({**parts, "type": parts.get("type", "veth")})
    parts = split(text, "model")
    if "model" in parts:
        model, own = parts.pop("model"), parts.pop("macaddr", None)
        parts = {model: own or cluster.new_mac(), **parts}
    return join(parts)


# Listings of one kind on one node


@answers("GET /nodes/{node}/GUEST")
def listed(cluster: Cluster, call: Call) -> list[dict[str, Any]]:
    """What is on the node, as it is now."""
    return [
        {"vmid": guest.vmid, "type": guest.kind, **current(cluster, guest)}
        for vmid, guest in sorted(cluster.guests.items())
        if guest.node == call.node
        and guest.kind == call.kind
        and cluster.access.may(call.who, f"/vms/{vmid}", "VM.Audit")
    ]


def current(cluster: Cluster, guest: Guest) -> dict[str, Any]:
    """Its state as it is now."""
    found = guest.entry(cluster.kernel.now)
    found |= {"cpus": found.pop("maxcpu"), "vmid": guest.vmid}
    if found.pop("template"):
        found["template"] = 1
    for key in ("lock", "tags"):
        if guest.conf.get(key):
            found[key] = guest.conf[key]
    if guest.running:
        found["pid"] = 100000 + guest.vmid % 100000
    if guest.kind == "qemu":
        found["qmpstatus"] = found["status"]
    return found


@answers("GET /nodes/{node}/GUEST/{vmid}/status/current")
def status(cluster: Cluster, call: Call) -> dict[str, Any]:
    """Its state as it is now."""
    return {
        **current(cluster, cluster.guest(call)),
        "ha": {"managed": int(call.vmid in cluster.ha)},
    }


@answers("GET /nodes/{node}/GUEST/{vmid}/config")
def config(cluster: Cluster, call: Call) -> dict[str, Any]:
    """What it is configured to be."""
    guest = cluster.guest(call)
    conf = guest.conf
    if "snapshot" in call.said:
        if call.said["snapshot"] not in guest.snapshots:
            raise PveError(f"snapshot '{call.said['snapshot']}' does not exist")
        conf = guest.snapshots[call.said["snapshot"]]
    shown = {key: value for key, value in conf.items() if key != "cipassword"}
    hidden = {"cipassword": "**********"} if "cipassword" in conf else {}
    return {**shown, **hidden, "digest": guest.digest}


# Changes


@answers("PUT /nodes/{node}/GUEST/{vmid}/config")
def configure(cluster: Cluster, call: Call) -> Process:
    """Change it, as soon as nobody else works on it."""
    if not set(call.said) - {"node", "vmid", "digest"}:
        raise PveError("no options specified")
    yield from _configure(cluster, call)


@answers("POST /nodes/{node}/qemu/{vmid}/config")
def configure_later(cluster: Cluster, call: Call) -> str:
    """Change it in a task."""
    cluster.guest(call)
    return cluster.begin(call, "qmconfig", lambda _task: _configure(cluster, call))


def _configure(cluster: Cluster, call: Call) -> Process:
    lock, text = cluster.file_lock(call.node, call.kind, call.vmid)
    if cluster.faults.lock_strikes("config"):
        yield Sleep(CONFIG_TIMEOUT)
        raise PveError(text)
    hold = lock.take(CONFIG_TIMEOUT, text)
    try:
        yield hold
        guest = cluster.guest(call)
        if not (call.said.get("skiplock") and call.who == ROOT):
            guest.check_lock()
        digest = call.said.get("digest", guest.digest)
        if digest != guest.digest:
            raise PveError(
                "detected modified configuration - file changed by other user? Try again."
            )
        dropped = [key for key in re.split(r"[,;\s]+", call.said.get("delete", "")) if key]
        wanted = _config(call)
        both = set(dropped) & set(wanted)
        if both:
            key = min(both)
            wrong = f"you can't use '-{key}' and -delete {key}' at the same time"
            raise refused_parameters({"delete": wrong})
        rights.check(cluster, call, [*wanted, *dropped], guest)
        new = yield from new_disks(cluster, call, guest, wanted)
        cluster.touch(guest)
        for key in dropped:
            guest.conf.pop(key, None)
        for key, value in {**wanted, **new}.items():
            card = key.startswith("net") and key[3:].isdigit()
            guest.conf[key] = _with_card(cluster, call.kind, str(value)) if card else value
    finally:
        hold.give_back()


@answers("POST /nodes/{node}/GUEST/{vmid}/template")
def make_template(cluster: Cluster, call: Call) -> str:
    """Turn it into something others are cloned from."""
    guest = cluster.guest(call)
    if guest.template:
        raise PveError(f"you can't convert a template to a template: {guest.vmid}")
    if guest.running:
        raise PveError(f"you can't convert a {guest.word} to template if {guest.word} is running")
    guest.check_lock()

    def work(_task: Task) -> Process:
        yield Sleep(1.0)
        cluster.touch(guest)
        for key, disk in guest.disks().items():
            base = disk["file"].replace(f"vm-{guest.vmid}-", f"base-{guest.vmid}-")
            guest.conf[key] = join({**disk, "file": base}, "file")
            cluster.volumes[base] = cluster.volumes.pop(disk["file"], guest.vmid)
        guest.conf["template"] = 1

    return cluster.begin(call, "qmtemplate" if call.kind == "qemu" else "vztemplate", work)


# Birth and death


@answers("POST /nodes/{node}/lxc", "POST /nodes/{node}/qemu")
def create(cluster: Cluster, call: Call) -> str:
    """Make one that is nobody's clone."""
    word = "VM" if call.kind == "qemu" else "CT"
    _check_create(cluster, call)
    wanted = _config(call)
    default = call.said.get("storage", "local")
    if call.kind == "lxc":
        wanted["rootfs"] = _rootfs(str(wanted.get("rootfs", "")), default)
    guest = Guest(call.vmid, call.kind, call.node, {"lock": "create"})
    rights.check(cluster, call, wanted, guest)
    try:
        cluster.check_unused(call.vmid)
    except PveError as error:
        raise PveError(f"unable to create {word} {call.vmid} - {error.message}") from error
    cluster.add(guest)
    kind = "qmcreate" if call.kind == "qemu" else "vzcreate"
    return cluster.begin(call, kind, lambda task: _creating(cluster, call, guest, wanted, task))


def _rootfs(text: str, default: str) -> str:
    if not text:
        return f"{default}:4"
    return f"{default}:{text}" if re.match(r"\d+(\.\d+)?(,|$)", text) else text


def _check_create(cluster: Cluster, call: Call) -> None:
    said = call.said
    pool = said.get("pool", "")
    if pool and pool not in cluster.pools:
        raise refused_permission(f"pool '{pool}' does not exist")
    allowed = cluster.access.may(call.who, f"/vms/{call.vmid}", "VM.Allocate")
    if not allowed and not (pool and cluster.access.may(call.who, f"/pool/{pool}", "VM.Allocate")):
        raise refused_permission()
    if call.kind == "lxc" and not cluster.settings.has(said["ostemplate"], call.node):
        raise PveError(f"volume '{said['ostemplate']}' does not exist")
    content = "rootdir" if call.kind == "lxc" else "images"
    if "storage" in said or (call.kind == "lxc" and "rootfs" not in said):
        storage = cluster.storage(said.get("storage", "local"), call.node)
        if not storage.takes(content):
            text = f"storage '{storage.name}' does not support container directories"
            raise refused_parameters({"storage": text})
        cluster.access.need(call.who, f"/storage/{storage.name}", "Datastore.AllocateSpace")


def _creating(
    cluster: Cluster, call: Call, guest: Guest, wanted: dict[str, Any], task: Task
) -> Process:
    lock, text = cluster.file_lock(call.node, call.kind, guest.vmid)
    hold = lock.take(CONFIG_TIMEOUT, text)
    try:
        yield hold
        made = yield from new_disks(cluster, call, guest, wanted)
        if call.kind == "lxc":
            task.say(f"extracting archive '{call.said['ostemplate']}'")
            name = str(made.get("rootfs", "")).partition(":")[0]
            yield from copied(cluster.storage(name, call.node), call.node, UNPACK_GIB * GIB, task)
        yield from _imported(cluster, call, made, task)
    except PveError:
        yield from removed(cluster, guest, unreferenced=True)
        cluster.remove(guest)
        raise
    finally:
        hold.give_back()
    cluster.touch(guest)
    for key, value in {**_defaults(call), **wanted, **made}.items():
        card = key.startswith("net") and key[3:].isdigit()
        guest.conf[key] = _with_card(cluster, call.kind, str(value)) if card else value
    guest.keys = str(call.said.get("ssh-public-keys", ""))
    guest.conf.pop("lock", None)
    if "pool" in call.said:
        cluster.into_pool(call.said["pool"], guest.vmid)
    if call.said.get("start"):
        yield from starting(cluster, guest, task)


def _imported(cluster: Cluster, call: Call, made: dict[str, Any], task: Task) -> Process:
    """Fill the disks that were to be made from an image."""
    for key, value in made.items():
        parts = split(str(value), "file")
        if parts.pop("import-from", ""):
            storage = cluster.storage(parts["file"].partition(":")[0], call.node)
            yield from copied(storage, call.node, IMPORT_GIB * GIB, task)
            made[key] = join({**parts, "size": f"{IMPORT_GIB}G"}, "file")


def _defaults(call: Call) -> dict[str, Any]:
    if call.kind == "lxc":
        name = f"CT{call.vmid}"
        return {"hostname": name, "memory": 512, "swap": 512, "arch": "amd64", "ostype": "debian"}
    return {"memory": 512, "cores": 1, "boot": " ", "smbios1": f"uuid={call.vmid}"}


@answers("DELETE /nodes/{node}/GUEST/{vmid}")
def destroy(cluster: Cluster, call: Call) -> str:
    """Remove it with its disks."""
    _check_destroy(cluster, call)

    def work(_task: Task) -> Process:
        lock, text = cluster.file_lock(call.node, call.kind, call.vmid)
        hold = lock.take(CONFIG_TIMEOUT, text)
        try:
            yield hold
            guest = _check_destroy(cluster, call)
            guest.check_lock()
            check_unused_base(cluster, guest)
            if guest.running:
                yield Sleep(cluster.nodes[guest.node].settings.stop_seconds)
                guest.running = False
            guest.conf["lock"] = "destroyed"
            also = bool(call.said.get("destroy-unreferenced-disks"))
            yield from removed(cluster, guest, unreferenced=also)
            cluster.remove(guest)
            cluster.told(guest, "destroy")
        finally:
            hold.give_back()

    return cluster.begin(call, "qmdestroy" if call.kind == "qemu" else "vzdestroy", work)


def _check_destroy(cluster: Cluster, call: Call) -> Guest:
    guest = cluster.guest(call)
    if guest.conf.get("protection"):
        raise PveError(f"can't remove {guest.word} {guest.vmid} - protection mode enabled")
    check_destroy(cluster, call, guest)
    if call.kind == "lxc":
        guest.check_lock()
        if guest.running and not call.said.get("force"):
            raise PveError(f"unable to destroy CT {guest.vmid} - container is running")
    elif guest.running:
        raise PveError(f"VM {guest.vmid} is running - destroy failed")
    return guest
