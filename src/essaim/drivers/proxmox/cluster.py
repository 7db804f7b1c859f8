"""What a cluster consists of, by one listing that all who ask at the same moment share."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from essaim.drivers.proxmox import boot_disk
from essaim.drivers.proxmox.api import Api, ApiError
from essaim.drivers.proxmox.boot_disk import Disks
from essaim.drivers.proxmox.refusals import Refusal

#: Seconds for which a listing serves those whom it need not be the newest.
SOON = 5.0
#: Seconds for which the configuration of a template is believed: it seldom changes.
_TEMPLATE = 600.0
_KINDS = ("qemu", "lxc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A virtual machine or a container, as the listing has it."""

    id: int
    kind: str  #: qemu or lxc
    node: str
    name: str = ""
    tags: frozenset[str] = frozenset()
    status: str = ""  #: running, stopped, or unknown when its node does not answer
    lock: str = ""
    uptime: int = 0
    memory: int = 0  #: bytes it may use
    cores: float = 0
    template: bool = False
    ha: str = ""  #: its state for the cluster's HA manager, if that starts and stops it

    @property
    def path(self) -> str:
        """Where the API has it."""
        return f"nodes/{self.node}/{self.kind}/{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node."""

    name: str
    online: bool
    memory: int  #: bytes in all
    used: int
    cores: float
    maintenance: bool = False  #: its administrator has taken it out of use for a while


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage."""

    nodes: frozenset[str]  #: that have it
    shared: bool
    content: frozenset[str]  #: what may be put there: images, rootdir, vztmpl, …


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything, at one moment."""

    guests: Mapping[int, Guest] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    shared: frozenset[str] = frozenset()  #: storages that all nodes see
    at: float = 0.0  #: of the monotonic clock, when it was asked for
    storages: Mapping[str, Storage] = field(default_factory=dict)  #: those the account may see
    pools: frozenset[str] = frozenset()  #: those the account may see

    def online(self, node: str) -> bool:
        """Whether a node answers."""
        return node in self.nodes and self.nodes[node].online


def read_listing(rows: list[dict[str, Any]], at: float) -> Listing:
    """Make sense of the rows of `cluster/resources`."""
    guests = {int(row["vmid"]): _guest(row) for row in rows if row.get("type") in _KINDS}
    nodes = {row["node"]: _node(row) for row in rows if row.get("type") == "node"}
    storages = _storages([row for row in rows if row.get("type") == "storage"])
    shared = frozenset(name for name, storage in storages.items() if storage.shared)
    pools = frozenset(str(row["pool"]) for row in rows if row.get("type") == "pool")
    return Listing(guests, nodes, shared, at, storages, pools)


def _storages(rows: list[dict[str, Any]]) -> dict[str, Storage]:
    """Put the rows of each storage, one for each node that has it, together."""
    nodes: dict[str, set[str]] = {}
    for row in rows:
        nodes.setdefault(row["storage"], set()).add(row.get("node", ""))
    return {
        row["storage"]: Storage(
            frozenset(nodes[row["storage"]]),
            _flag(row.get("shared")),
            frozenset(str(row.get("content") or "").split(",")),
        )
        for row in rows
    }


def _flag(value: Any) -> bool:
    return str(value or 0) == "1"


def read_tags(text: Any) -> frozenset[str]:
    """Tags as the API writes them."""
    return frozenset(str(text or "").replace(",", ";").replace(" ", ";").split(";")) - {""}


def _guest(row: Mapping[str, Any]) -> Guest:
    return Guest(
        id=int(row["vmid"]),
        kind=row["type"],
        node=row.get("node", ""),
        name=row.get("name") or "",
        tags=read_tags(row.get("tags")),
        status=row.get("status") or "",
        lock=row.get("lock") or "",
        uptime=int(row.get("uptime") or 0),
        memory=int(row.get("maxmem") or 0),
        cores=float(row.get("maxcpu") or 0),
        template=_flag(row.get("template")),
        ha=str(row.get("hastate") or "").replace("ignored", ""),
    )


def _node(row: Mapping[str, Any]) -> Node:
    return Node(
        name=row["node"],
        online=row.get("status") == "online",
        memory=int(row.get("maxmem") or 0),
        used=int(row.get("mem") or 0),
        cores=float(row.get("maxcpu") or 0),
        maintenance=row.get("hastate") == "maintenance",
    )


class Cluster:
    """The listing, kept for a moment, and the drives of templates, kept for minutes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._last = Listing(at=float("-inf"))
        self._disks: dict[int, tuple[Disks, float]] = {}  # of templates, and when they were read

    def listing(self, *, within: float = SOON) -> Listing:
        """The cluster as it was at most so many seconds ago; 0: as it is from now on.

        However many ask at once, one call serves all who came before it was made.
        """
        asked = time.monotonic()
        with self._lock:
            if self._last.at < asked - within or (within == 0 and self._last.at < asked):
                at = time.monotonic()
                self._last = read_listing(self._api.get("cluster/resources"), at)
            return self._last

    def doubt(self) -> None:
        """Let the next listing be a new one, for a node may have gone."""
        with self._lock:
            self._last = replace(self._last, at=float("-inf"))

    def config(self, guest: Guest) -> dict[str, Any]:
        """The configuration of a guest as it is now."""
        found: dict[str, Any] = self._api.get(f"{guest.path}/config")
        return found

    def find(self, number: int) -> Guest | None:
        """The guest of that id, as it is now; None when there is none."""
        return self.listing(within=0).guests.get(number)

    def is_taken(self, number: int) -> bool:
        """Whether any guest has that id, also one that this account cannot see."""
        try:
            self._api.get("cluster/nextid", vmid=number)
        except ApiError as error:
            if error.kind is not Refusal.TAKEN:
                raise
            return True
        return False

    def disks_of(self, template: Guest) -> Disks:
        """The drives of a template."""
        known, read_at = self._disks.get(template.id, (None, 0.0))
        if known is None or time.monotonic() - read_at > _TEMPLATE:
            known = boot_disk.read(self.config(template))
            self._disks[template.id] = (known, time.monotonic())
        return known

    def its_config(self, guest: Guest) -> dict[str, Any]:
        """The configuration of a guest as it is now; empty when it is not ours to read, or gone."""
        try:
            return self.config(guest)
        except ApiError as error:
            if error.kind in (Refusal.DENIED, Refusal.GONE):
                return {}
            raise


def first_storage(config: Mapping[str, Any]) -> str:
    """The storage of the disk a guest boots from; nothing when it has none."""
    return boot_disk.read(config).storage
