"""The pool, storages and bridges that the machines of a site use, as the cluster tells of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from essaim.drivers.doctor import Check
from essaim.drivers.proxmox.api import ApiError
from essaim.drivers.proxmox.examination import Examination, listed, not_asked, refused
from essaim.model.spelling import meant

#: Below this a storage holds no machines for long.
FREE_DISK = 5 * 2**30
_BRIDGES = ("bridge", "OVSBridge", "vnet")
#: What a storage holds of machines: disks of virtual machines, of containers.
EITHER = {"images", "rootdir"}


def check_pool(its: Examination) -> Iterator[Check]:
    """Whether the pool of the site exists."""
    name = its.settings.pool
    if not name:
        return
    try:
        known = [str(row["poolid"]) for row in its.api.get("pools")]
        if name in known:
            yield Check("pool", ok=True, text=name)
        elif "Pool.Audit" in its.lacking[f"/pool/{name}"]:
            why = f"it does not exist, or the account lacks Pool.Audit on it{_near(name, known)}"
            yield not_asked("pool", name, why)
        else:
            text = f"the site names {name}, which does not exist{_near(name, known)}"
            text += f"\non a node, as root: pveum pool add {name}"
            yield Check("pool", ok=False, text=text)
    except ApiError as error:
        yield refused("pool", name, error)


def _near(name: str, known: Iterable[str]) -> str:
    near = meant(name, list(known), kind="the account sees")
    return f"; {near}" if near else ""


def check_storages(its: Examination) -> Iterator[Check]:
    """Each storage that is used: there, active, for such content, with room."""
    for name, holds in sorted(its.storages.items()):
        yield _storage(its, name, holds)


def _storage(its: Examination, name: str, holds: set[str]) -> Check:
    try:
        every = {node: its.api.get(f"nodes/{node}/storage") for node in its.online}
    except ApiError as error:
        return refused("storage", name, error)
    rows = {node: row for node, found in every.items() for row in found if row["storage"] == name}
    if not rows:
        if lacks := its.lacks(f"/storage/{name}"):
            return not_asked("storage", name, f"the account lacks {lacks} on it")
        known = {row["storage"] for found in every.values() for row in found}
        text = f"{name} does not exist, or on no node that is used; there are: {listed(known)}"
        return Check("storage", ok=False, text=text)
    wrong = [problem for node, row in rows.items() if (problem := _wrong(node, row, holds))]
    free = min(int(row.get("avail") or 0) for row in rows.values())
    if free < FREE_DISK and not EITHER.isdisjoint(holds):
        wrong.append(f"at least {FREE_DISK >> 30} GiB are wanted")
    without = [node for node in its.online if node not in rows]
    more = [f"not on {', '.join(without)}"] if without else []
    text = "; ".join([f"{name}: {free / 2**30:.1f} GiB free", *dict.fromkeys(wrong), *more])
    return Check("storage", ok=not wrong, text=text, warn=bool(without))


def _wrong(node: str, row: dict[str, Any], holds: set[str]) -> str:
    """What is wrong with a storage on one node; nothing when it is as machines need it."""
    if not int(row.get("enabled", 1)) or not int(row.get("active", 1)):
        return f"not active on {node}"
    content = set(str(row.get("content") or "").split(","))
    # Of which kind machines will be may not be known: then either will do.
    lacks = holds - content if holds != EITHER else holds if holds.isdisjoint(content) else ()
    return f"may not hold {' or '.join(sorted(lacks))} (Content of the storage)" if lacks else ""


def check_bridges(its: Examination) -> Iterator[Check]:
    """Each bridge that is used, on every node."""
    for name in sorted({bridge for bridge, _vlan in its.cards}):
        try:
            yield _bridge(its, name)
        except ApiError as error:
            yield refused("bridge", name, error)


def _bridge(its: Examination, name: str) -> Check:
    if lacks := its.lacks(f"/sdn/zones/localnetwork/{name}"):
        # Who may not use a bridge is not told that it is there.
        seen = {each for node in its.online[:1] for each in _bridges(its, node, name)}
        why = f"it does not exist, or the account lacks {lacks} on it{_near(name, seen)}"
        return not_asked("bridge", name, why)
    without = []
    for node in its.online:
        there = _bridges(its, node, name)
        if name not in there:
            without.append(f"{node} has no {name}; it has {listed(there)}")
        elif not int(there[name].get("active") or 0):
            without.append(f"{name} is not active on {node}")
    text = "; ".join(without) or f"{name} on {', '.join(its.online)}"
    return Check("bridge", ok=not without, text=text)


def _bridges(its: Examination, node: str, name: str) -> dict[str, dict[str, Any]]:
    found = its.api.get(f"nodes/{node}/network")
    if all(row["iface"] != name for row in found):  # perhaps one of the cluster's own networks
        found = its.api.get(f"nodes/{node}/network", type="any_bridge")
    return {row["iface"]: row for row in found if row.get("type") in _BRIDGES}
