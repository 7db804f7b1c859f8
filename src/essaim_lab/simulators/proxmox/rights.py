"""Which right which setting of a machine needs, and what only root himself may set."""

from __future__ import annotations

import re
from collections.abc import Iterable

from essaim_lab.simulators.proxmox.access import ROOT
from essaim_lab.simulators.proxmox.cluster import Call, Cluster
from essaim_lab.simulators.proxmox.errors import PveError, refused_parameters, refused_permission
from essaim_lab.simulators.proxmox.network import check_bridge
from essaim_lab.simulators.proxmox.schema import split
from essaim_lab.simulators.proxmox.state import Guest

#: What is not here needs VM.Config.Options.
_RIGHTS = (
    (r"rootfs|mp\d+|unused\d+|(ide|sata|scsi|virtio)\d+|efidisk0", "VM.Config.Disk"),
    (r"cores|cpu\w*|sockets|vcpus|numa\d*|affinity", "VM.Config.CPU"),
    (r"memory|swap|balloon|shares", "VM.Config.Memory"),
    (r"net\d+|nameserver|searchdomain|hostname", "VM.Config.Network"),
    (r"ci\w+|ipconfig\d+|sshkeys", "VM.Config.Cloudinit"),
    (r"scsihw|vga|machine|keyboard|tablet|audio0|bios|hotplug", "VM.Config.HWType"),
)
_CARD = re.compile(r"net\d+")
#: Of a virtual machine.
_ROOTS = re.compile(r"args|hookscript|affinity|(hostpci|usb|serial|parallel)\d+")


def right(kind: str, key: str) -> str:
    """The privilege a setting needs."""
    for pattern, found in _RIGHTS:
        if re.fullmatch(pattern, key):
            # A container's name and name servers are its network; a machine has neither.
            cloud = kind == "qemu" and key in ("nameserver", "searchdomain")
            return "VM.Config.Cloudinit" if cloud else found
    return "VM.Config.Options"


def check(cluster: Cluster, call: Call, keys: Iterable[str], guest: Guest) -> None:
    """Refuse unless the caller may change all of these.  A token of root is not root."""
    if call.said.get("skiplock") and call.who != ROOT:
        raise refused_parameters({"skiplock": "Only root may use this option."})
    if call.who == ROOT:
        return
    pool = call.said.get("pool", "")
    for key in keys:
        (_check_ct if call.kind == "lxc" else _check_vm)(call, key, guest)
        wanted = right(call.kind, key)
        if not (pool and cluster.access.may(call.who, f"/pool/{pool}", wanted)):
            cluster.access.need(call.who, f"/vms/{guest.vmid}", wanted)
        if _CARD.fullmatch(key):
            for card in (guest.conf.get(key), call.said.get(key)):
                check_bridge(cluster, call.who, str(card or ""))


def _check_vm(_call: Call, key: str, _guest: Guest) -> None:
    if _ROOTS.fullmatch(key):
        raise PveError(f"only root can set '{key}' config")


def _check_ct(call: Call, key: str, guest: Guest) -> None:
    if key.startswith("dev") and key[3:].isdigit():
        raise refused_permission("configuring device passthrough is only allowed for root@pam")
    if key == "hookscript":
        raise refused_permission("changing the hookscript is only allowed for root@pam")
    if key == "features":
        _check_features(call, guest)
    if right("lxc", key) == "VM.Config.Disk" and key in call.said:
        file = split(str(call.said[key]), "file").get("file", "")
        if file.startswith("/"):
            kind = "device" if file.startswith("/dev/") else "bind"
            raise refused_permission(f"mount point type {kind} is only allowed for root@pam")


def _check_features(call: Call, guest: Guest) -> None:
    if not (guest.conf.get("unprivileged") or call.said.get("unprivileged")):
        raise refused_permission(
            "changing feature flags for privileged container is only allowed for root@pam"
        )
    old = split(str(guest.conf.get("features", "")))
    new = split(str(call.said.get("features", "")))
    changed = {key for key in {*old, *new} if old.get(key, "") != new.get(key, "")}
    if changed - {"nesting"}:
        raise refused_permission(
            "changing feature flags (except nesting) is only allowed for root@pam"
        )
