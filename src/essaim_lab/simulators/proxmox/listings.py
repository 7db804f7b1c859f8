"""What there is: version, nodes, storages, pools, numbers, and all of it in one list."""

from __future__ import annotations

import re
import time
from typing import Any

from essaim_lab.simulators.proxmox.cluster import Call, Cluster, answers
from essaim_lab.simulators.proxmox.errors import PveError, refused_parameters
from essaim_lab.simulators.proxmox.high_availability import guest_state, node_state
from essaim_lab.simulators.proxmox.state import Guest, Node, Storage, to_bytes

HIGHEST = 1_000_000


@answers("GET /version", "GET /nodes/{node}/version")
def version(cluster: Cluster, _call: Call) -> dict[str, Any]:
    """Which Proxmox VE it says it is."""
    number = cluster.settings.version
    release = ".".join(re.split(r"[.-]", number)[:2])
    return {"version": number, "release": release, "repoid": "simulator"}


@answers("GET /cluster/nextid")
def nextid(cluster: Cluster, call: Call) -> str:
    """The first number that is free at this moment.  It is not kept for anybody."""
    if "vmid" in call.said:
        if call.vmid in cluster.guests:
            raise refused_parameters({"vmid": f"VM {call.vmid} already exists"})
        return str(call.vmid)
    for number in range(100, HIGHEST):
        if number not in cluster.guests:
            return str(number)
    raise PveError(f"unable to get any free VMID in range [100, {HIGHEST}]")


@answers("GET /cluster/status")
def status(cluster: Cluster, _call: Call) -> list[dict[str, Any]]:
    """The cluster and its nodes."""
    online = sum(node.online for node in cluster.nodes.values())
    majority = online * 2 > len(cluster.nodes) and cluster.faults.quorate
    found: list[dict[str, Any]] = [
        {
            "id": "cluster",
            "type": "cluster",
            "name": cluster.settings.cluster,
            "nodes": len(cluster.nodes),
            "quorate": int(majority),
            "version": len(cluster.nodes),
        }
    ]
    for number, node in enumerate(cluster.nodes.values(), 1):
        found.append(
            {
                "id": f"node/{node.name}",
                "type": "node",
                "name": node.name,
                "nodeid": number,
                "ip": f"10.0.0.{number}",
                "online": int(node.online),
                "local": int(number == 1),
                "level": "",
            }
        )
    return found


# Everything in one list


@answers("GET /cluster/resources")
def resources(cluster: Cluster, call: Call) -> list[dict[str, Any]]:
    """All that somebody may see.  Powers and names are as they were when last gathered."""
    kind = call.said.get("type")
    found: list[dict[str, Any]] = []
    if kind in (None, "pool"):
        found += [
            {"id": f"/pool/{name}", "pool": name, "type": "pool"}
            for name in sorted(cluster.pools)
            if cluster.access.may(call.who, f"/pool/{name}", "Pool.Audit")
        ]
    if kind in (None, "vm"):
        found += _machines(cluster, call.who)
    if kind in (None, "node"):
        found += [
            {
                "id": f"node/{node.name}",
                "type": "node",
                **_seen_node(cluster, node, call.who),
                **node_state(cluster, node.name),
            }
            for node in cluster.nodes.values()
        ]
    if kind in (None, "storage"):
        found += _storages(cluster, call.who)
    return found


def _machines(cluster: Cluster, who: str) -> list[dict[str, Any]]:
    pools = {vmid: name for name, pool in cluster.pools.items() for vmid in pool.vms}
    gathered = cluster.gathered()
    found = []
    for vmid, guest in sorted(cluster.guests.items()):
        if not cluster.access.may(who, f"/vms/{vmid}", "VM.Audit"):
            continue
        entry = {**machine(cluster, guest, gathered), **guest_state(cluster, vmid)}
        pool = pools.get(vmid)
        if pool and cluster.access.may(who, f"/pool/{pool}", "Pool.Audit"):
            entry["pool"] = pool
        found.append(entry)
    return found


def machine(cluster: Cluster, guest: Guest, gathered: float) -> dict[str, Any]:
    """What a listing says of a machine, as it was gathered then."""
    entry: dict[str, Any] = {
        "id": f"{guest.kind}/{guest.vmid}",
        "vmid": guest.vmid,
        "node": guest.node,
        "type": guest.kind,
        "status": "unknown",
    }
    if guest.changed <= gathered and guest.shown_at != gathered:
        guest.shown, guest.shown_at = guest.entry(gathered), gathered
    if guest.shown:
        entry |= guest.shown
    if not cluster.nodes[guest.node].online:
        entry["status"] = "unknown"
    for key in ("lock", "tags"):
        if guest.conf.get(key):
            entry[key] = guest.conf[key]
    return entry


def _node(cluster: Cluster, node: Node) -> dict[str, Any]:
    if not node.online:
        return {"node": node.name, "status": "offline", "level": ""}
    on = [g for g in cluster.guests.values() if g.node == node.name and g.running]
    memory = node.settings.memory
    return {
        "node": node.name,
        "status": "online",
        "level": "",
        "maxcpu": node.settings.cpus,
        "cpu": min(1.0, 0.01 + 0.002 * len(on)),
        "maxmem": memory,
        "mem": min(memory, memory // 32 + sum(guest.memory() // 4 for guest in on)),
        "maxdisk": 1 << 38,
        "disk": 1 << 34,
        "uptime": int(cluster.kernel.now) % 10**7,
    }


def _seen_node(cluster: Cluster, node: Node, who: str) -> dict[str, Any]:
    """A node as somebody sees it: how big and how busy it is only auditors see."""
    entry = _node(cluster, node)
    if cluster.access.may(who, f"/nodes/{node.name}", "Sys.Audit"):
        return entry
    return {key: entry[key] for key in ("node", "status", "level")}


def _storages(cluster: Cluster, who: str) -> list[dict[str, Any]]:
    found = []
    used = _all_used(cluster)
    for storage in cluster.storages.values():
        if not cluster.access.may(who, f"/storage/{storage.name}", "Datastore.Audit"):
            continue
        for node in [each for each in cluster.nodes.values() if storage.is_on(each.name)]:
            settings = storage.settings
            found.append(
                {
                    "id": f"storage/{node.name}/{storage.name}",
                    "type": "storage",
                    "storage": storage.name,
                    "node": node.name,
                    "plugintype": settings.type,
                    "status": "available" if node.online else "unknown",
                    "shared": int(settings.shared),
                    "content": settings.content,
                    "maxdisk": settings.size,
                    "disk": _used(cluster, storage, node.name, used),
                }
            )
    return found


def _all_used(cluster: Cluster) -> dict[tuple[str, str], int]:
    """What full disks take, by storage and node."""
    found: dict[tuple[str, str], int] = {}
    for guest in cluster.guests.values():
        for disk in guest.disks().values():
            name, _, rest = disk["file"].partition(":")
            if "/" not in rest:
                size = to_bytes(disk.get("size", ""))
                found[name, guest.node] = found.get((name, guest.node), 0) + size
    return found


def _used(
    cluster: Cluster, storage: Storage, node: str, known: dict[tuple[str, str], int] | None = None
) -> int:
    if storage.full:
        return storage.settings.size
    used = _all_used(cluster) if known is None else known
    places = cluster.nodes if storage.settings.shared else [node]
    return sum(used.get((storage.name, place), 0) for place in places)


# Nodes and storages


@answers("GET /nodes")
def nodes(cluster: Cluster, call: Call) -> list[dict[str, Any]]:
    """The nodes; how busy they are is for those who may audit them."""
    return [
        {"id": f"node/{node.name}", "type": "node", **_seen_node(cluster, node, call.who)}
        for node in cluster.nodes.values()
    ]


@answers("GET /nodes/{node}/status")
def node_status(cluster: Cluster, call: Call) -> dict[str, Any]:
    """How busy a node is."""
    found = _node(cluster, cluster.nodes[call.node])
    free = found["maxmem"] - found["mem"]
    return {
        "uptime": found["uptime"],
        "cpu": found["cpu"],
        "loadavg": ["0.10", "0.10", "0.10"],
        "cpuinfo": {"cpus": found["maxcpu"], "sockets": 2, "cores": found["maxcpu"] // 2},
        "memory": {"total": found["maxmem"], "used": found["mem"], "free": free},
        "rootfs": {"total": found["maxdisk"], "used": found["disk"]},
        "pveversion": f"pve-manager/{cluster.settings.version}/simulator",
    }


@answers("GET /nodes/{node}/network")
def network(cluster: Cluster, call: Call) -> list[dict[str, Any]]:
    """The cards of a node, and those of its bridges that one may use."""
    kind = str(call.said.get("type", ""))
    found = [
        {"iface": name, "type": "bridge", "active": 1, "autostart": 1, "bridge_vlan_aware": 1}
        for name in cluster.nodes[call.node].settings.bridges or cluster.settings.bridges
        if cluster.access.may_see_bridge(call.who, name)
    ]
    if kind == "any_bridge":
        rows = cluster.settings.vnets.items()
        found += [
            {"iface": name, "type": "vnet", "active": 1}
            for name, zone in rows
            if cluster.access.may_any(call.who, f"/sdn/zones/{zone}/{name}", "SDN.Audit", "SDN.Use")
        ]
    if kind.startswith("any_"):
        return found
    found.append({"iface": "eno1", "type": "eth", "active": 1, "autostart": 1})
    return [row for row in found if kind in ("", row["type"])]


@answers("GET /nodes/{node}/time")
def node_time(cluster: Cluster, call: Call) -> dict[str, Any]:
    """The clock of a node: the wall's, whatever the speed of the simulation."""
    now = int(time.time() + cluster.nodes[call.node].settings.clock_ahead)
    return {"time": now, "localtime": now, "timezone": "UTC"}


@answers("GET /storage")
def storages(cluster: Cluster, call: Call) -> list[dict[str, Any]]:
    """The storages as they are configured."""
    return [
        {
            "storage": storage.name,
            "type": storage.settings.type,
            "content": storage.settings.content,
            "shared": int(storage.settings.shared),
            **({"nodes": ",".join(having)} if (having := storage.settings.nodes) else {}),
        }
        for storage in cluster.storages.values()
        if _may_see(cluster, call.who, storage.name)
    ]


def _may_see(cluster: Cluster, who: str, name: str) -> bool:
    there = cluster.access.privileges(who, f"/storage/{name}")
    return not there.isdisjoint(("Datastore.Audit", "Datastore.AllocateSpace"))


def _state(cluster: Cluster, storage: Storage, node: str) -> dict[str, Any]:
    total, used = storage.settings.size, _used(cluster, storage, node)
    return {
        "type": storage.settings.type,
        "content": storage.settings.content,
        "shared": int(storage.settings.shared),
        "active": 1,
        "enabled": 1,
        "total": total,
        "used": used,
        "avail": total - used,
    }


@answers("GET /nodes/{node}/storage")
def node_storages(cluster: Cluster, call: Call) -> list[dict[str, Any]]:
    """The storages a node has, with what is free."""
    wanted = call.said.get("content", "").split(",") if call.said.get("content") else []
    return [
        {"storage": storage.name, **_state(cluster, storage, call.node)}
        for storage in cluster.storages.values()
        if _may_see(cluster, call.who, storage.name)
        and (not wanted or any(storage.takes(each) for each in wanted))
        and call.said.get("storage", storage.name) == storage.name
        and storage.is_on(call.node)
    ]


@answers("GET /nodes/{node}/storage/{storage}/status")
def storage_status(cluster: Cluster, call: Call) -> dict[str, Any]:
    """What is free on a storage."""
    return _state(cluster, cluster.storage(call.said["storage"], call.node), call.node)


def _stock(cluster: Cluster, storage: Storage, node: str) -> list[dict[str, Any]]:
    """What machines are made from: archives of containers, disk images, CDs."""
    settings = cluster.settings
    kinds = (
        ("vztmpl", "tzst", settings.ostemplates),
        ("import", "qcow2", settings.disk_images),
        ("iso", "iso", settings.isos),
    )
    return [
        {"volid": volid, "content": kind, "format": form, "size": 126 << 20}
        for kind, form, volids in kinds
        for volid in volids
        if volid.startswith(f"{storage.name}:") and settings.has(volid, node)
    ]


@answers("GET /nodes/{node}/storage/{storage}/content")
def content(cluster: Cluster, call: Call) -> list[dict[str, Any]]:
    """The volumes on a storage."""
    storage = cluster.storage(call.said["storage"], call.node)
    found = _stock(cluster, storage, call.node)
    referenced = set()
    for guest in cluster.guests.values():
        for disk in guest.disks().values():
            referenced.add(disk["file"])
            here = storage.settings.shared or guest.node == call.node
            if here and disk["file"].startswith(f"{storage.name}:"):
                kind = "images" if guest.kind == "qemu" else "rootdir"
                entry = {"volid": disk["file"], "vmid": guest.vmid, "content": kind}
                entry |= {"format": "raw", "size": to_bytes(disk.get("size", "0"))}
                found.append(entry)
    found += [
        {"volid": file, "vmid": vmid, "content": "images", "format": "raw", "size": 0}
        for file, vmid in cluster.volumes.items()
        if file not in referenced and file.startswith(f"{storage.name}:")
    ]
    wanted = call.said.get("content")
    owner = call.said.get("vmid")
    return [
        each
        for each in found
        if (not wanted or each["content"] == wanted) and (not owner or each.get("vmid") == owner)
    ]
