"""Snapshots: kept, gone back to, forgotten."""

from __future__ import annotations

from typing import Any

from essaim_lab.simulators.proxmox.cluster import Call, Cluster, answers
from essaim_lab.simulators.proxmox.errors import PveError
from essaim_lab.simulators.proxmox.kernel import Process, Sleep
from essaim_lab.simulators.proxmox.power import starting
from essaim_lab.simulators.proxmox.state import Guest, Task

_NAMES = {"qemu": "qm", "lxc": "vz"}
_OWN = ("snaptime", "snapstate", "description", "parent", "vmstate")


def _snapshot(guest: Guest, name: str) -> dict[str, Any]:
    if name not in guest.snapshots:
        raise PveError(f"snapshot '{name}' does not exist")
    return guest.snapshots[name]


def _seconds(cluster: Cluster, guest: Guest) -> float:
    return cluster.nodes[guest.node].settings.snapshot_seconds


@answers("GET /nodes/{node}/GUEST/{vmid}/snapshot")
def listed(cluster: Cluster, call: Call) -> list[dict[str, Any]]:
    """All of them, and what is now under the name of current."""
    guest = cluster.guest(call)
    found = []
    for name, snapshot in guest.snapshots.items():
        entry = {"name": name, "description": "", "vmstate": 0}
        entry |= {key: snapshot[key] for key in _OWN if key in snapshot}
        found.append(entry)
    now = {"name": "current", "description": "You are here!", "running": int(guest.running)}
    if "parent" in guest.conf:
        now["parent"] = guest.conf["parent"]
    return [*found, {**now, "digest": guest.digest}]


@answers("GET /nodes/{node}/GUEST/{vmid}/snapshot/{snapname}/config")
def config(cluster: Cluster, call: Call) -> dict[str, Any]:
    """What the machine was configured to be then."""
    return dict(_snapshot(cluster.guest(call), call.said["snapname"]))


@answers("POST /nodes/{node}/GUEST/{vmid}/snapshot")
def create(cluster: Cluster, call: Call) -> str:
    """Keep the machine as it is."""
    name = call.said["snapname"]
    if name in ("current", "vzdump", "pending"):
        raise PveError(f"unable to use snapshot name '{name}' (reserved name)")

    def work(_task: Task) -> Process:
        guest = cluster.guest(call)
        if guest.template:
            raise PveError("you can't take a snapshot if it's a template")
        guest.check_lock()
        if name in guest.snapshots:
            raise PveError(f"snapshot name '{name}' already used")
        kept = {key: v for key, v in guest.conf.items() if key not in ("lock", "description")}
        guest.conf["lock"] = "snapshot"
        kept |= {"snaptime": int(cluster.kernel.now), "snapstate": "prepare"}
        if call.said.get("description"):
            kept["description"] = call.said["description"]
        guest.snapshots[name] = kept
        yield Sleep(_seconds(cluster, guest))
        kept.pop("snapstate")
        guest.conf.pop("lock")
        guest.conf["parent"] = name
        cluster.told(guest, f"snapshot {name}")

    return cluster.begin(call, f"{_NAMES[call.kind]}snapshot", work)


@answers("DELETE /nodes/{node}/GUEST/{vmid}/snapshot/{snapname}")
def delete(cluster: Cluster, call: Call) -> str:
    """Forget one; those made after it hang on the one before."""
    name = call.said["snapname"]
    cluster.guest(call)

    def work(_task: Task) -> Process:
        guest = cluster.guest(call)
        snapshot = _snapshot(guest, name)
        guest.check_lock()
        guest.conf["lock"] = "snapshot-delete"
        yield Sleep(_seconds(cluster, guest))
        for other in (guest.conf, *guest.snapshots.values()):
            if other.get("parent") == name:
                other.pop("parent")
                if "parent" in snapshot:
                    other["parent"] = snapshot["parent"]
        del guest.snapshots[name]
        guest.conf.pop("lock")

    return cluster.begin(call, f"{_NAMES[call.kind]}delsnapshot", work)


@answers("POST /nodes/{node}/GUEST/{vmid}/snapshot/{snapname}/rollback")
def rollback(cluster: Cluster, call: Call) -> str:
    """Go back to one; the machine is off afterwards, unless told to start."""
    name = call.said["snapname"]
    cluster.guest(call)

    def work(task: Task) -> Process:
        guest = cluster.guest(call)
        snapshot = _snapshot(guest, name)
        if snapshot.get("snapstate"):
            state = snapshot["snapstate"]
            text = f"unable to rollback to incomplete snapshot (snapstate = {state})"
            raise PveError(text)
        guest.check_lock()
        cluster.touch(guest)
        if guest.running:
            guest.running = False
            cluster.told(guest, "stop")
        guest.conf["lock"] = "rollback"
        yield Sleep(_seconds(cluster, guest))
        cluster.touch(guest)
        kept = {key: value for key, value in snapshot.items() if key not in _OWN}
        if "description" in guest.conf:
            kept["description"] = guest.conf["description"]
        guest.conf.clear()
        guest.conf.update(kept | {"parent": name})
        cluster.told(guest, f"rollback {name}")
        if call.said.get("start"):
            yield from starting(cluster, guest, task)

    return cluster.begin(call, f"{_NAMES[call.kind]}rollback", work)
