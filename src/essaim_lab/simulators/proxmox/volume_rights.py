"""Who may use which volume of a storage: `check_volume_access` of pve-storage."""

from __future__ import annotations

import re

from essaim_lab.simulators.proxmox.access import ROOT
from essaim_lab.simulators.proxmox.cluster import Call, Cluster
from essaim_lab.simulators.proxmox.errors import PveError
from essaim_lab.simulators.proxmox.schema import split

_OWNER = re.compile(r"(?:vm|base)-(\d+)-[^/]*$")
_NEW = re.compile(r"([\w.-]+):(\d+(?:\.\d+)?)")
_FILES = ("iso", "vztmpl", "import", "backup", "snippets")


def check_storage(cluster: Cluster, who: str, name: str) -> None:
    """Refuse unless somebody may make volumes on a storage."""
    cluster.access.need(who, f"/storage/{name}", "Datastore.AllocateSpace")


def check_volume(cluster: Cluster, who: str, vmid: int, volume: str, wanted: str = "") -> None:
    """Refuse unless somebody may use a volume for that machine, as content of that type."""
    storage, mark, name = volume.partition(":")
    if not mark:
        if who != ROOT:
            raise PveError("Only root can pass arbitrary filesystem paths.")
        return
    folder = name.partition("/")[0]
    kind = folder if folder in _FILES else "images"
    if wanted and kind != wanted and (wanted, kind) != ("rootdir", "images"):
        raise PveError(f"unable to use volume {volume} - content type needs to be '{wanted}'")
    access, place = cluster.access, f"/storage/{storage}"
    if access.may(who, place, "Datastore.Allocate"):
        return
    owner = _OWNER.search(name)
    if kind in ("iso", "vztmpl", "import"):
        access.need_any(who, place, "Datastore.AllocateSpace", "Datastore.Audit")
    elif kind == "images" and owner:
        if int(owner[1]) != vmid:
            access.need(who, place, "Datastore.Audit")
            access.need(who, f"/vms/{owner[1]}", "VM.Config.Disk")
    else:
        raise PveError(f"missing privileges to access {volume}")


def check_drive(cluster: Cluster, call: Call, vmid: int, value: str) -> None:
    """Refuse unless somebody may use the volumes that a drive of a machine names."""
    parts = split(value, "file")
    file, source = parts.get("file", ""), parts.get("import-from", "")
    new = _NEW.fullmatch(file)
    if file == "cdrom":
        cluster.access.need(call.who, "/", "Sys.Console")
    elif new and parts.get("media") != "cdrom":
        check_storage(cluster, call.who, new[1])
    elif file not in ("", "none", "cloudinit") and not file.endswith(":cloudinit"):
        check_volume(cluster, call.who, vmid, file)
    owner = _OWNER.search(source)
    if owner:
        cluster.access.need(call.who, f"/vms/{owner[1]}", "VM.Clone")
    elif source:
        check_volume(cluster, call.who, vmid, source)
