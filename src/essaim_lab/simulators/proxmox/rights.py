"""Which right which setting of a machine needs, and what only root himself may set.

As `check_vm_modify_config_perm` of qemu-server and `check_ct_modify_config_perm` of pve-container
do it: see docs/proxmox-behaviour.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from essaim_lab.simulators.proxmox.access import ROOT
from essaim_lab.simulators.proxmox.cluster import Call, Cluster
from essaim_lab.simulators.proxmox.errors import PveError, refused_parameters, refused_permission
from essaim_lab.simulators.proxmox.network import check_bridge
from essaim_lab.simulators.proxmox.roles import guards_bridges
from essaim_lab.simulators.proxmox.schema import split
from essaim_lab.simulators.proxmox.state import Guest
from essaim_lab.simulators.proxmox.volume_rights import check_drive, check_volume

_DRIVE = re.compile(r"(ide|sata|scsi|virtio)\d+|efidisk0|tpmstate0")
_CARD = re.compile(r"net\d+")
_DEVICE = re.compile(r"(serial|usb|hostpci)\d+")
_MOUNT = re.compile(r"rootfs|mp\d+")
_CLOUD_INIT = re.compile(r"[:/](vm-\d+-)?cloudinit(\.(raw|qcow2))?$")
_NEW_DISK = re.compile(r"([\w.-]+):(\d+(?:\.\d+)?)")
#: Of a virtual machine; what is in none of these only root may set.
_VM = {
    "VM.Config.CPU": "cores cpu runningcpu cpulimit cpuunits numa smp sockets vcpus",
    "VM.Config.Memory": "memory balloon shares allow-ksm",
    "VM.Config.HWType": """acpi hotplug kvm machine runningmachine scsihw smbios1 tablet vga
        watchdog audio0 rng0""",
    "VM.Config.Options": """agent autostart bios description keyboard localtime migrate_downtime
        migrate_speed name onboot ostype protection reboot startdate startup tdf template""",
    "VM.PowerMgmt": "freeze",
}
_VM_RIGHTS = {key: privilege for privilege, keys in _VM.items() for key in keys.split()}
_BOOT = ("boot", "bootdisk", "vmstatestorage")
_VM_CLOUD_INIT = re.compile(
    r"cicustom|cipassword|citype|ciuser|ciupgrade|nameserver|searchdomain|sshkeys|ipconfig\d+"
)
_REST = "VM.Config.Options"
#: Of a container; what is in none of these needs VM.Config.Options.
_CT_RIGHTS = (
    (re.compile(r"rootfs|mp\d+"), "VM.Config.Disk"),
    (re.compile(r"cores|cpuunits|cpulimit"), "VM.Config.CPU"),
    (re.compile(r"memory|swap"), "VM.Config.Memory"),
    (re.compile(r"net\d+|nameserver|searchdomain|hostname"), "VM.Config.Network"),
)


def right(kind: str, key: str) -> str:
    """The privilege that a setting needs; VM.Config.Disk tells its disks from all others."""
    if kind == "lxc":
        return next((found for names, found in _CT_RIGHTS if names.fullmatch(key)), _REST)
    return "VM.Config.Disk" if _DRIVE.fullmatch(key) else _VM_RIGHTS.get(key, _REST)


def check(cluster: Cluster, call: Call, keys: Iterable[str], guest: Guest) -> None:
    """Refuse unless the caller may change all of these.  A token of root is not root."""
    if call.said.get("skiplock") and call.who != ROOT:
        raise refused_parameters({"skiplock": "Only root may use this option."})
    if call.who == ROOT:
        return
    its = _Change(cluster, call, guest)
    for key in keys:
        (its.container if call.kind == "lxc" else its.machine)(key)
    if its.new and "ostemplate" in call.said:
        check_volume(cluster, call.who, guest.vmid, str(call.said["ostemplate"]), "vztmpl")


class _Change:
    """One request to make or to change a machine."""

    def __init__(self, cluster: Cluster, call: Call, guest: Guest) -> None:
        self.cluster, self.call, self.guest = cluster, call, guest
        self.new = cluster.guests.get(guest.vmid) is not guest
        self.pool = str(call.said.get("pool", "")) if self.new else ""

    def need(self, *wanted: str, any_of: bool = False) -> None:
        """Refuse unless the caller has these for the machine, or for the pool it is made in."""
        access, who = self.cluster.access, self.call.who
        may = access.may_any if any_of else access.may
        if self.pool and may(who, f"/pool/{self.pool}", *wanted):
            return
        (access.need_any if any_of else access.need)(who, f"/vms/{self.guest.vmid}", *wanted)

    def need_for_tags(self) -> None:
        """Tags are asked for on the machine itself, also when it is made in a pool."""
        self.cluster.access.need(self.call.who, f"/vms/{self.guest.vmid}", "VM.Config.Options")

    def values(self, key: str) -> list[str]:
        """What a setting was and what it will be."""
        both = (self.guest.conf.get(key), self.call.said.get(key))
        return [str(value) for value in both if value is not None]

    def bridges(self, key: str) -> None:
        for card in self.values(key):
            check_bridge(self.cluster, self.call.who, card)

    # Virtual machines

    def machine(self, key: str) -> None:
        if key == "tags":
            if not self.new:  # those of a new machine are not checked at all
                self.need_for_tags()
        elif _DRIVE.fullmatch(key) or key.startswith("unused"):
            self.drive(key)
        elif _DEVICE.fullmatch(key):
            self.device(key)
        elif _CARD.fullmatch(key):
            self.need("VM.Config.Network")
            self.bridges(key)
        else:
            self.plain(key)

    def plain(self, key: str) -> None:
        if key.startswith("ipconfig") and not guards_bridges(self.cluster.access.version):
            self.need("VM.Config.Network")  # until version 8 it was a matter of networks alone
        elif _VM_CLOUD_INIT.fullmatch(key):
            self.need("VM.Config.Cloudinit", "VM.Config.Network", any_of=True)
        elif key in _BOOT:
            self.need("VM.Config.Disk")
        elif key not in _VM_RIGHTS:
            raise PveError(f"only root can set '{key}' config")
        else:
            self.need(_VM_RIGHTS[key])
            if key == "startup":  # it changes how the node behaves
                self.cluster.access.need(self.call.who, "/", "Sys.Modify")

    def drive(self, key: str) -> None:
        if not self.new:
            for value in self.values(key):
                self.need(*_drive_rights(value))
        if key in self.call.said:
            check_drive(self.cluster, self.call, self.guest.vmid, str(self.call.said[key]))

    def device(self, key: str) -> None:
        for value in self.values(key):
            if key.startswith("serial"):
                allowed = value == "socket"
            elif key.startswith("usb"):
                allowed = "spice" in value.lower() or "mapping=" in value
            else:
                allowed = "mapping=" in value
            if not allowed:
                what = "non-mapped" if key.startswith("hostpci") else "real"
                raise PveError(f"only root can set '{key}' config for {what} devices")
            self.need("VM.Config.HWType")

    # Containers

    def container(self, key: str) -> None:
        if key == "tags":
            self.need_for_tags()
        elif key == "features":
            self.features()
        elif key == "hookscript":
            raise refused_permission("changing the hookscript is only allowed for root@pam")
        elif key.startswith("dev") and key[3:].isdigit():
            raise refused_permission("configuring device passthrough is only allowed for root@pam")
        elif not (self.new and key == "unprivileged"):
            self.need(right("lxc", key))
            self.mount_or_card(key)

    def mount_or_card(self, key: str) -> None:
        if _CARD.fullmatch(key):
            self.bridges(key)
        if not _MOUNT.fullmatch(key) or key not in self.call.said:
            return
        file = split(str(self.call.said[key]), "file").get("file", "")
        if file.startswith("/"):
            kind = "device" if file.startswith("/dev/") else "bind"
            raise refused_permission(f"mount point type {kind} is only allowed for root@pam")
        new = _NEW_DISK.fullmatch(file)
        if new:
            where = f"/storage/{new[1]}"
            self.cluster.access.need(self.call.who, where, "Datastore.AllocateSpace")
        elif ":" in file:
            check_volume(self.cluster, self.call.who, self.guest.vmid, file, "rootdir")

    def features(self) -> None:
        if not (self.guest.conf.get("unprivileged") or self.call.said.get("unprivileged")):
            raise refused_permission(
                "changing feature flags for privileged container is only allowed for root@pam"
            )
        old = split(str(self.guest.conf.get("features", "")))
        new = split(str(self.call.said.get("features", "")))
        changed = {key for key in {*old, *new} if old.get(key, "") != new.get(key, "")}
        if changed - {"nesting"}:
            raise refused_permission(
                "changing feature flags (except nesting) is only allowed for root@pam"
            )
        if changed:
            self.need("VM.Allocate")


def _drive_rights(value: str) -> tuple[str, ...]:
    """What it takes to put such a drive in or to take it out."""
    if _CLOUD_INIT.search(value.partition(",")[0]):
        return ("VM.Config.Cloudinit", "VM.Config.CDROM")
    return ("VM.Config.CDROM",) if "media=cdrom" in value else ("VM.Config.Disk",)
