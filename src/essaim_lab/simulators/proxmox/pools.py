"""Pools: machines and storages that share rights."""

from __future__ import annotations

from typing import Any

from essaim_lab.simulators.proxmox.cluster import Call, Cluster, answers
from essaim_lab.simulators.proxmox.errors import PveError
from essaim_lab.simulators.proxmox.listings import machine
from essaim_lab.simulators.proxmox.state import Pool


@answers("GET /pools", "GET /pools/{poolid}")
def pools(cluster: Cluster, call: Call) -> Any:
    """The pools somebody may see, or one with its members."""
    name = call.said.get("poolid")
    if name is None:
        return [
            {"poolid": each, "comment": pool.comment}
            for each, pool in sorted(cluster.pools.items())
            if cluster.access.may(call.who, f"/pool/{each}", "Pool.Audit")
        ]
    pool = _pool(cluster, name)
    gathered = cluster.gathered()
    members: list[dict[str, Any]] = [
        machine(cluster, cluster.guests[vmid], gathered)
        for vmid in sorted(pool.vms)
        if vmid in cluster.guests
    ]
    first = next(iter(cluster.nodes))
    members += [
        {"id": f"storage/{first}/{each}", "type": "storage", "storage": each, "node": first}
        for each in sorted(pool.storages)
    ]
    return {"poolid": name, "comment": pool.comment, "members": members}


def _pool(cluster: Cluster, name: str) -> Pool:
    if name not in cluster.pools:
        raise PveError(f"pool '{name}' does not exist")
    return cluster.pools[name]


@answers("POST /pools")
def create_pool(cluster: Cluster, call: Call) -> None:
    """Make one."""
    name = call.said["poolid"]
    if name in cluster.pools:
        raise PveError(f"create pool failed: pool '{name}' already exists")
    if not name[0].isalpha():
        raise PveError("create pool failed: pool name must start with a letter")
    cluster.pools[name] = Pool(call.said.get("comment", ""))
    cluster.access.changed()


@answers("PUT /pools", "PUT /pools/{poolid}")
def change_pool(cluster: Cluster, call: Call) -> None:
    """Let machines and storages in or out."""
    pool = _pool(cluster, call.said["poolid"])
    out = bool(call.said.get("delete"))
    pool.comment = call.said.get("comment", pool.comment)
    vms = [int(word) for word in str(call.said.get("vms", "")).replace(";", ",").split(",") if word]
    for vmid in vms:
        cluster.access.need_modify(call.who, f"/vms/{vmid}")
        _move(cluster, call, pool, vmid, out=out)
    for storage in [word for word in str(call.said.get("storage", "")).split(",") if word]:
        cluster.access.need_modify(call.who, f"/storage/{storage}")
        (pool.storages.discard if out else pool.storages.add)(storage)
    pool.refresh()
    cluster.access.changed()


def _move(cluster: Cluster, call: Call, pool: Pool, vmid: int, *, out: bool) -> None:
    if out:
        if vmid not in pool.vms:
            raise PveError(f"update pools failed: VM {vmid} is not a pool member")
        pool.vms.discard(vmid)
        return
    for other in cluster.pools.values():
        if vmid in other.vms:
            if other is pool or not call.said.get("allow-move"):
                raise PveError(f"update pools failed: VM {vmid} is already a pool member")
            other.vms.discard(vmid)
            other.refresh()
    pool.vms.add(vmid)


@answers("DELETE /pools", "DELETE /pools/{poolid}")
def delete_pool(cluster: Cluster, call: Call) -> None:
    """Remove one that is empty."""
    name = call.said["poolid"]
    pool = _pool(cluster, name)
    if pool.vms:
        text = f"pool '{name}' is not empty (contains VM {min(pool.vms)})"
        raise PveError(f"delete pool failed: {text}")
    if pool.storages:
        text = f"pool '{name}' is not empty (contains storage '{min(pool.storages)}')"
        raise PveError(f"delete pool failed: {text}")
    del cluster.pools[name]
    cluster.access.changed()
