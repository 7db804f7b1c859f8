"""Which disk a guest boots from, how large it is, and where its drives are: pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: Disks of a virtual machine by bus, in the order in which they are taken to boot from when its
#: configuration does not say, and how many a bus has.
_BUSES = {"ide": 4, "scsi": 31, "virtio": 16, "sata": 6}
_DISKS = tuple(f"{bus}{number}" for bus, most in _BUSES.items() for number in range(most))
#: Where people put CDs.
_CDS = ("ide2", "ide3", "ide0", "ide1")
_CLOUD_INIT = re.compile(r"[:/](?:vm-\d+-)?cloudinit(?:\.\w+)?$")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks:
    """What is known of a guest's drives."""

    boot: str = ""  #: key of the disk it boots from: rootfs, scsi0, …; nothing when it has none
    storage: str = ""  #: where that disk is
    size: int = 0  #: its bytes; 0: not known
    storages: frozenset[str] = frozenset()  #: of all its drives, CDs and cloud-init included
    cloud_init: bool = False  #: whether it has a drive that cloud-init reads its settings from
    free_drive: str = "ide2"  #: where a CD could be added


def read(config: Mapping[str, Any]) -> Disks:
    """Read the drives of a configuration."""
    boot = find(config)
    drives = dict(_drives(config))
    volumes = [_volume(text) for text in drives.values()]
    return Disks(
        boot=boot,
        storage=_volume(drives.get(boot, "")).partition(":")[0],
        size=_size(drives.get(boot, "")),
        storages=frozenset(volume.partition(":")[0] for volume in volumes if ":" in volume),
        cloud_init=any(_CLOUD_INIT.search(volume) for volume in volumes),
        free_drive=next(key for key in (*_CDS, *_DISKS) if key not in drives),
    )


def find(config: Mapping[str, Any]) -> str:
    """The key of the disk a guest boots from; nothing when it has none.

    The boot order says it, or the older `bootdisk`; else it is the first disk that is no CD.
    """
    disks = [key for key, text in _drives(config) if _is_disk(text)]
    order = str(config.get("boot") or "").partition("order=")[2].partition(",")[0]
    named = [*re.split(r"[;\s]+", order), str(config.get("bootdisk") or "")]
    return next((key for key in (*named, *disks) if key in disks), "")


def _drives(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The drives of a guest that are there, in the order of their buses."""
    points = sorted(key for key in config if re.fullmatch(r"mp\d+", key))
    for key in ("rootfs", *points, *_DISKS):
        if config.get(key):
            yield key, str(config[key])


def _is_disk(text: str) -> bool:
    volume = _volume(text)
    cd = "media=cdrom" in text.split(",") or _CLOUD_INIT.search(volume)
    return volume not in ("", "none") and not cd


def _volume(text: str) -> str:
    """The volume of a drive: the part without a name, or the one that says so."""
    parts = text.split(",")
    named = [part.partition("=")[2] for part in parts if part.startswith(("file=", "volume="))]
    return next((part for part in parts if "=" not in part), named[0] if named else "")


def _size(text: str) -> int:
    for part in text.split(","):
        if part.startswith("size=") and (found := _SIZE.fullmatch(part.removeprefix("size="))):
            return int(float(found[1]) * _UNITS[found[2]])
    return 0
