"""How fast it could possibly go."""

from __future__ import annotations

from essaim_lab.simulators.proxmox.settings import Settings


def lower_bound(
    settings: Settings,
    machines: int,
    *,
    kind: str = "lxc",
    full: bool = True,
    start: bool = True,
    template: str = "",
    storage: str = "",
    nodes: int = 0,
) -> float:
    """The fewest simulated seconds in which so many machines can be cloned and started.

    Nothing can be faster than what is busiest: the storage's lock, what the storage copies with,
    the templates (a container's is cloned by one at a time) or the nodes that start machines.
    Before the first start there is a clone, and after the last clone a start.
    """
    if not machines:
        return 0.0
    sources = [
        each
        for each in settings.templates
        if each.kind == kind and (not template or template in (each.name, str(each.vmid)))
    ]
    place = storage or sources[0].storage
    disk = next(each for each in settings.storages if each.name == place)
    locked = disk.alloc_seconds if full else disk.linked_seconds
    copy = disk.copy_seconds * sources[0].gib if full else 0.0
    busiest = [machines * locked, machines * copy / disk.copies, locked + copy]
    if kind == "lxc":
        busiest.append(-(-machines // len(sources)) * (locked + copy))
    cloned = max(busiest)
    if not start:
        return cloned
    hosts = settings.nodes[: nodes or None]
    seconds = [each.start_seconds if kind == "lxc" else each.boot_seconds for each in hosts]
    rate = sum(each.starts / one for each, one in zip(hosts, seconds, strict=True))
    return max(cloned + min(seconds), locked + copy + max(machines / rate, min(seconds)))
