"""How big and how fast the simulated cluster is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from essaim_lab.simulators.proxmox.roles import RELEASES

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """A storage, and how long it takes for what.  Seconds are simulated ones."""

    name: str
    type: str = "rbd"
    shared: bool = True
    content: str = "images,rootdir"
    copy_seconds: float = 1.5  #: to copy a GiB, when there is room
    copies: int = 4  #: how many are made at full speed; more of them share that
    alloc_seconds: float = 0.25  #: to make an empty disk; one at a time, under the storage's lock
    linked_seconds: float = 0.8  #: to make a linked clone; one at a time, under the storage's lock
    free_seconds: float = 0.2  #: to remove a disk; one at a time, under the storage's lock
    lock_timeout: float = 10.0  #: whoever waits longer for the storage's lock fails
    size: int = 64 << 40
    nodes: tuple[str, ...] = ()  #: that have it; else all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """A node, and how long it takes for what."""

    name: str
    cpus: int = 64
    memory: int = 512 * GIB
    start_seconds: float = 3.0  #: a container's start, when there is room
    boot_seconds: float = 8.0  #: a virtual machine's start, when there is room
    starts: int = 4  #: how many start at full speed; more of them share that
    stop_seconds: float = 1.0
    shutdown_seconds: float = 4.0
    snapshot_seconds: float = 1.0
    start_timeout: float = 0.0  #: a start that takes longer fails; 0: none does
    bridges: tuple[str, ...] = ()  #: of its own; else those of the cluster
    clock_ahead: float = 0.0  #: seconds that its clock is ahead of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSettings:
    """A machine that others are cloned from."""

    vmid: int
    name: str
    kind: str  #: lxc or qemu
    node: str
    storage: str
    gib: int = 8
    disk: str = ""  #: what it boots from; else rootfs, or scsi0
    cloud_init: bool = True  #: whether a virtual machine has a drive for cloud-init


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All of it."""

    nodes: tuple[NodeSettings, ...]
    storages: tuple[StorageSettings, ...]
    templates: tuple[TemplateSettings, ...]
    seed: int = 0
    #: `cluster/resources` shows powers and names as they were when last gathered, so often.
    stats_seconds: float = 10.0
    slow_listing: float = 0.0  #: seconds every listing of pools, storages and resources takes
    denied_seconds: float = 3.0  #: a refused log-in is answered late
    #: Finished tasks a node still shows in `cluster/tasks`, less those that run.
    recent_tasks: int = 25
    archive: int = 2000  #: finished tasks a node remembers
    cluster: str = "lab"
    version: str = RELEASES[8]
    bridges: tuple[str, ...] = ("vmbr0", "vmbr1", "vibr279")
    vnets: Mapping[str, str] = field(default_factory=dict)  #: of SDN, with the zone of each
    ostemplates: tuple[str, ...] = field(
        default=(
            "dirs-nfs:vztmpl/debian-11-standard_11.6-1_amd64.tar.zst",
            "dirs-nfs:vztmpl/debian-11-standard_11.10-1_amd64.tar.zst",
            "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst",
            "local:vztmpl/ubuntu-24.04-standard_24.04-2_amd64.tar.zst",
        )
    )
    isos: tuple[str, ...] = ("local:iso/debian-12.9.0-amd64-netinst.iso",)
    #: Archives and images that only these nodes have, on storages that are not shared.
    only_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Disk images that virtual machines are made from, with their size in GiB.
    disk_images: Mapping[str, int] = field(
        default_factory=lambda: {"local:import/debian-12.qcow2": 3}
    )

    def has(self, volume: str, node: str) -> bool:
        """Whether a node has that archive or image."""
        every = (*self.ostemplates, *self.isos, *self.disk_images)
        return volume in every and node in self.only_on.get(volume, (node,))


def usual(
    *,
    nodes: int = 3,
    templates: int = 1,
    copies: int = 1,
    storages: Sequence[StorageSettings] = (),
    node: NodeSettings | None = None,
    gib: int = 8,
    seed: int = 0,
    stats_seconds: float = 10.0,
    slow_listing: float = 0.0,
    version: int = 8,
) -> Settings:
    """A cluster as schools have it: pve1 … pveN, Ceph for machines, `templates` of each kind.

    Containers are cloned from debian-gui (9000), debian-gui-2, …; virtual machines from debian-vm
    (9500), debian-vm-2, ….  With `copies` there are so many of each name, on different nodes.
    """
    like = node or NodeSettings(name="pve")
    names = [f"pve{number}" for number in range(1, nodes + 1)]
    places = tuple(_renamed(like, name) for name in names)
    kept = tuple(storages) or (StorageSettings(name="vol-ceph-1"),)
    local = StorageSettings(
        name="local", type="dir", shared=False, content="iso,vztmpl,backup,import"
    )
    nfs = StorageSettings(name="dirs-nfs", type="nfs", content="iso,vztmpl")
    thin = StorageSettings(name="local-lvm", type="lvmthin", shared=False, copies=2)
    made = []
    for first, kind, name in ((9000, "lxc", "debian-gui"), (9500, "qemu", "debian-vm")):
        for number in range(templates * copies):
            series = number // copies
            made.append(
                TemplateSettings(
                    vmid=first + number,
                    name=f"{name}-{series + 1}" if series else name,
                    kind=kind,
                    node=names[number % nodes],
                    storage=kept[0].name,
                    gib=gib,
                )
            )
    return Settings(
        nodes=places,
        storages=(*kept, thin, local, nfs),
        templates=tuple(made),
        seed=seed,
        stats_seconds=stats_seconds,
        slow_listing=slow_listing,
        version=RELEASES[version],
    )


def _renamed(like: NodeSettings, name: str) -> NodeSettings:
    values = {key: getattr(like, key) for key in NodeSettings.__slots__}
    return NodeSettings(**{**values, "name": name})
