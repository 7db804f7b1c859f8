"""High availability: guests that the HA manager starts and stops, and nodes in maintenance.

Whoever starts or stops such a guest asks the HA manager to; the task ends at once, and the manager
does it in one of its rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from essaim_lab.simulators.proxmox.cluster import Call, Cluster
from essaim_lab.simulators.proxmox.errors import PveError
from essaim_lab.simulators.proxmox.kernel import Process, Sleep
from essaim_lab.simulators.proxmox.state import Guest, Task

ROUND_SECONDS = 10.0  #: between two rounds of the HA manager
_ASK_SECONDS = 0.5  #: that it takes to tell it


def request(cluster: Cluster, call: Call, state: str, act: Callable[[], object]) -> str:
    """Begin the task that asks the manager for a state; `act` is what the manager does later."""
    guest = cluster.guest(call)
    verb = "start" if state == "started" else "stop"

    def work(task: Task) -> Process:
        task.say(f"Requesting HA {verb} for {guest.word} {guest.vmid}")
        yield Sleep(_ASK_SECONDS)
        cluster.ha[guest.vmid] = state

        def carried_out() -> None:
            wanted = cluster.ha.get(guest.vmid) == state and guest.vmid in cluster.guests
            if wanted and guest.running != (state == "started"):
                act()

        cluster.kernel.after(ROUND_SECONDS, carried_out)

    return cluster.begin(call, f"ha{verb}", work)


def check_destroy(cluster: Cluster, call: Call, guest: Guest) -> None:
    """Refuse to remove a guest that the manager looks after, unless it shall forget it too."""
    if guest.vmid in cluster.ha and not call.said.get("purge"):
        text = f"unable to remove {guest.word} {guest.vmid} - used in HA resources and purge"
        raise PveError(f"{text} parameter not set.")


def guest_state(cluster: Cluster, vmid: int) -> dict[str, Any]:
    """What a listing adds for a guest that the manager looks after."""
    return {"hastate": cluster.ha[vmid]} if vmid in cluster.ha else {}


def node_state(cluster: Cluster, name: str) -> dict[str, Any]:
    """What a listing adds for a node once high availability is in use."""
    if cluster.nodes[name].maintenance:
        return {"hastate": "maintenance"}
    return {"hastate": "online"} if cluster.ha and cluster.nodes[name].online else {}
