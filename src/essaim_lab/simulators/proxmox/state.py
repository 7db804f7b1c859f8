"""What the simulated cluster consists of."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

from essaim_lab.simulators.proxmox.errors import PveError
from essaim_lab.simulators.proxmox.kernel import Kernel, Lock, Running, Station
from essaim_lab.simulators.proxmox.schema import split
from essaim_lab.simulators.proxmox.settings import GIB, NodeSettings, StorageSettings

WORDS = {"qemu": "VM", "lxc": "CT"}
_DISK = re.compile(r"rootfs|mp\d+|(ide|sata|scsi|virtio)\d+|efidisk0|tpmstate0")
_is_disk = functools.lru_cache(maxsize=1024)(_DISK.fullmatch)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def to_bytes(text: str) -> int:
    """Read a size such as 8G."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text)
    return int(float(found[1]) * _UNITS[found[2]]) if found else 0


def to_text(size: int) -> str:
    """Write a size as Proxmox VE does."""
    for unit in "TGMK":
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)


@dataclass
class Node:
    """A node: what it starts machines with, and whether it answers."""

    settings: NodeSettings
    starts: Station
    online: bool = True
    maintenance: bool = False
    pid: int = 1000

    @property
    def name(self) -> str:
        """What it is called."""
        return self.settings.name


@dataclass
class Storage:
    """A storage: what it copies with, and its lock (one for each node unless it is shared)."""

    settings: StorageSettings
    kernel: Kernel
    locks: dict[str, Lock] = field(default_factory=dict)
    stations: dict[str, Station] = field(default_factory=dict)
    full: bool = False  #: whether nothing more can be put there

    @property
    def name(self) -> str:
        """What it is called."""
        return self.settings.name

    def is_on(self, node: str) -> bool:
        """Whether a node has it."""
        return not self.settings.nodes or node in self.settings.nodes

    def lock(self, node: str) -> Lock:
        """What allocations wait for."""
        return self.locks.setdefault("" if self.settings.shared else node, Lock())

    def station(self, node: str) -> Station:
        """What copies are made with."""
        place = "" if self.settings.shared else node
        if place not in self.stations:
            self.stations[place] = Station(self.kernel, self.settings.copies)
        return self.stations[place]

    def timeout_text(self) -> str:
        """What is said to whoever waited too long for the lock."""
        if self.settings.shared:
            return f"cfs-lock 'storage-{self.name}' error: got lock request timeout"
        return f"can't lock file '/var/lock/pve-manager/pve-storage-{self.name}' - got timeout"

    def full_text(self) -> str:
        """What is said to whoever wants room on it when there is none."""
        name = f"{self.name}/vm-disk"
        said = {
            "lvm": "not enough free space (0 < 8388608)",
            "lvmthin": f"lvcreate '{name}' error:   Cannot create new thin volume, free space in"
            f" thin pool {self.name}/data reached threshold.",
            "zfspool": f"zfs error: cannot create '{name}': out of space",
            "rbd": f"rbd create '{name}' error: rbd: create error: (28) No space left on device",
        }
        return said.get(self.settings.type, "unable to create image: No space left on device")

    def takes(self, content: str) -> bool:
        """Whether such things may be put there."""
        return content in self.settings.content.split(",")


@dataclass
class Pool:
    """A group of machines and storages."""

    comment: str = ""
    vms: set[int] = field(default_factory=set)
    storages: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)

    def refresh(self) -> None:
        """Name the places its rights extend to."""
        self.paths = {f"/vms/{vmid}" for vmid in self.vms}
        self.paths |= {f"/storage/{storage}" for storage in self.storages}


@dataclass
class Guest:
    """A virtual machine or a container."""

    vmid: int
    kind: str
    node: str
    conf: dict[str, Any]
    running: bool = False
    started: float = 0.0
    snapshots: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: str = field(default="", repr=False)
    #: What was gathered of it last, and when it changed since.
    shown: dict[str, Any] | None = None
    shown_at: float = -1.0
    changed: float = 0.0
    #: Of the guest agent: files of a machine that is not real, and commands that were begun.
    files: dict[str, bytes] = field(default_factory=dict, repr=False)
    processes: dict[int, Any] = field(default_factory=dict, repr=False)

    @property
    def word(self) -> str:
        """VM or CT."""
        return WORDS[self.kind]

    @property
    def name(self) -> str:
        """What people call it."""
        return str(self.conf.get("name" if self.kind == "qemu" else "hostname") or (
            f"{self.word}{self.vmid}" if self.kind == "lxc" else f"VM {self.vmid}"
        ))  # fmt: skip

    @property
    def template(self) -> bool:
        """Whether others are cloned from it."""
        return bool(self.conf.get("template"))

    @property
    def digest(self) -> str:
        """Differs after every change of its configuration."""
        text = "".join(f"{key}: {value}\n" for key, value in sorted(self.conf.items()))
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def check_lock(self) -> None:
        """Refuse if somebody marked it as being worked on."""
        if self.conf.get("lock"):
            raise PveError(f"{self.word} is locked ({self.conf['lock']})")

    def disks(self) -> dict[str, dict[str, str]]:
        """Its disks by key; `file` of each is the volume."""
        return {
            key: split(str(value), "file")
            for key, value in self.conf.items()
            if _is_disk(key) and "media=cdrom" not in str(value)
        }

    def bytes(self) -> int:
        """How much its disks hold."""
        return sum(to_bytes(disk.get("size", "")) for disk in self.disks().values())

    def cpus(self) -> int:
        """How many processors it has."""
        return int(self.conf.get("cores", 1)) * int(self.conf.get("sockets", 1))

    def memory(self) -> int:
        """How much memory it may use."""
        text = split(str(self.conf.get("memory", 512)), "current")["current"]
        return int(text) << 20

    def entry(self, now: float) -> dict[str, Any]:
        """What a listing says of it now."""
        share = 0.25 if self.running else 0
        return {
            "name": self.name,
            "status": "running" if self.running else "stopped",
            "template": int(self.template),
            "uptime": int(now - self.started) if self.running else 0,
            "maxcpu": self.cpus(),
            "cpu": 0.01 * share,
            "maxmem": self.memory(),
            "mem": int(self.memory() * share),
            "maxdisk": self.bytes() or GIB,
            "disk": 0,
            "netin": 0,
            "netout": 0,
            "diskread": 0,
            "diskwrite": 0,
        }


@dataclass
class Task:
    """Something under way, or done."""

    upid: str
    node: str
    pid: int
    pstart: int
    starttime: int
    type: str
    id: str
    user: str
    lines: list[str] = field(default_factory=list)
    endtime: int = 0
    exitstatus: str = ""
    process: Running | None = None

    @property
    def running(self) -> bool:
        """Whether it is not over."""
        return not self.exitstatus

    def say(self, line: str) -> None:
        """Write a line to its log."""
        self.lines.append(line)

    def entry(self) -> dict[str, Any]:
        """What a listing says of it."""
        owner, _, token = self.user.partition("!")
        found: dict[str, Any] = {
            "upid": self.upid,
            "node": self.node,
            "starttime": self.starttime,
            "type": self.type,
            "id": self.id,
            "user": owner,
        }
        if token:
            found["tokenid"] = token
        if self.running:
            found["pid"] = self.pid
        else:
            found |= {"endtime": self.endtime, "status": self.exitstatus}
        return found
