"""Whether the account has the rights it needs, as the cluster itself tells, path by path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from essaim.drivers.doctor import Check
from essaim.drivers.proxmox import permissions
from essaim.drivers.proxmox.api import ApiError
from essaim.drivers.proxmox.examination import Examination, not_asked, refused
from essaim.drivers.proxmox.permissions import Need


def check_rights(its: Examination) -> Iterator[Check]:
    """Ask for each path; what is missing is named with the command that gives it."""
    vnets = _vnets(its)
    for name in sorted(vnets):
        path = f"/sdn/zones/ZONE/{name}"
        why = f"the zone of that VNet is not known here; it needs SDN.Use on {path}"
        yield not_asked("rights", f"what {its.settings.who} may do with {name}", why)
    site = permissions.Site(
        storages=its.storages,
        templates=[*(guest.id for guest in its.templates), *its.unseen],
        cards=[card for card in its.cards if card[0] not in vnets],
        nodes=its.online,
        version=its.version,
        agent=its.agent,
    )
    who, lacking = its.settings.who, False
    for need in permissions.needs(its.settings, site):
        try:
            missing = _missing(its, need)
        except ApiError as error:
            yield refused("rights", f"what {who} may do on {need.path}", error)
            lacking = True
            continue
        if missing:
            lacking = True
            its.lacking[need.path].update(missing)
            text = f"{who} lacks {', '.join(missing)} on {need.path}\n"
            text += f"on a node, as root: {permissions.grant(its.settings, need)}"
            yield Check("rights", ok=False, text=text)
    if not lacking:
        yield Check("rights", ok=True, text=f"{who} has all it needs")


def _vnets(its: Examination) -> set[str]:
    """Which of the bridges that are used are VNets of an SDN zone."""
    try:
        rows = [
            row
            for node in its.online[:1]
            for row in its.api.get(f"nodes/{node}/network", type="any_bridge")
        ]
    except ApiError:
        return set()
    found = {row["iface"] for row in rows if row.get("type") == "vnet"}
    return found & {bridge for bridge, _vlan in its.cards}


def _missing(its: Examination, need: Need) -> list[str]:
    found: set[str] = set()
    for path in need.places:
        answer: dict[str, Any] = its.api.get("access/permissions", path=path)
        found.update(need.missing(answer.get(path) or {}))
    return sorted(found)


def hidden_guests(its: Examination) -> list[int]:
    """Guests that the account has some right on, but may not see: VM.Audit is missing."""
    try:
        paths: dict[str, Any] = its.api.get("access/permissions")
    except ApiError:
        return []
    numbers = [path.removeprefix("/vms/") for path in paths if path.startswith("/vms/")]
    return [int(each) for each in numbers if each.isdigit() and int(each) not in its.listing.guests]
