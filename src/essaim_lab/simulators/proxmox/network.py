"""Network cards: who may plug them where, and what addresses machines say they have."""

from __future__ import annotations

import ipaddress
from typing import Any

from essaim_lab.simulators.proxmox.access import ROOT
from essaim_lab.simulators.proxmox.cluster import Call, Cluster, answers
from essaim_lab.simulators.proxmox.errors import PveError
from essaim_lab.simulators.proxmox.kernel import Process, Sleep
from essaim_lab.simulators.proxmox.roles import guards_bridges
from essaim_lab.simulators.proxmox.schema import split
from essaim_lab.simulators.proxmox.state import Guest


def check_bridge(cluster: Cluster, who: str, card: str) -> None:
    """Refuse a card on a bridge somebody has no right to; version 7 asks for none.

    A card with a VLAN needs the right on that VLAN: one on the bridge that goes on below will do.
    """
    parts = split(card)
    bridge = parts.get("bridge")
    if not bridge or who == ROOT or not guards_bridges(cluster.access.version):
        return
    place = f"/sdn/zones/{cluster.settings.vnets.get(bridge, 'localnetwork')}/{bridge}"
    vlans = [parts["tag"]] if "tag" in parts else []
    for words in parts.get("trunks", "").split(";"):
        first, _, last = words.partition("-")
        if first:
            vlans += [str(vlan) for vlan in range(int(first), int(last or first) + 1)]
    for path in [f"{place}/{vlan}" for vlan in vlans] or [place]:
        cluster.access.need(who, path, "SDN.Use")


def mac(card: str) -> str:
    """The card's address."""
    parts = split(card)
    found = [value for value in parts.values() if value.count(":") == 5]  # noqa: PLR2004 - a MAC
    return parts.get("hwaddr") or (found[0] if found else "")


def address(guest: Guest, number: int) -> str:
    """What the card was given, with its mask: what was set, or else by DHCP."""
    card = split(str(guest.conf.get(f"net{number}", "")))
    said = card if guest.kind == "lxc" else _told(guest, number)
    given = said.get("ip", "dhcp" if guest.kind == "qemu" else "manual")
    if given == "dhcp":
        # A network of our own invention, where every machine always gets the same address.
        base = int(ipaddress.ip_address("10.128.0.0"))
        return f"{ipaddress.ip_address(base + number * (1 << 21) + guest.vmid % (1 << 21))}/10"
    return "" if given == "manual" else given


def _told(guest: Guest, number: int) -> dict[str, str]:
    """What cloud-init in a virtual machine is told: nothing without a drive to read it from."""
    drive = any("cloudinit" in str(value) for value in guest.conf.values())
    return split(str(guest.conf.get(f"ipconfig{number}", ""))) if drive else {}


def bridges(guest: Guest) -> set[str]:
    """What its cards are plugged into."""
    own = [key for key in guest.conf if key.startswith("net") and key[3:].isdigit()]
    return {found for key in own if (found := split(str(guest.conf[key])).get("bridge"))}


def cards(guest: Guest) -> list[dict[str, Any]]:
    """All cards: name, MAC and address with mask; first the loopback."""
    found = [{"name": "lo", "mac": "00:00:00:00:00:00", "ip": "127.0.0.1/8"}]
    for key in sorted(guest.conf):
        if key.startswith("net") and key[3:].isdigit():
            card = split(str(guest.conf[key]))
            name = card.get("name") or f"eth{key[3:]}"
            ip = address(guest, int(key[3:]))
            found.append({"name": name, "mac": mac(str(guest.conf[key])).lower(), "ip": ip})
    return found


def addresses(ip: str) -> list[dict[str, Any]]:
    """An address with its mask, as the API writes it."""
    if not ip:
        return []
    plain, _, prefix = ip.partition("/")
    kind = "ipv6" if ":" in plain else "ipv4"
    return [{"ip-address": plain, "prefix": int(prefix or 32), "ip-address-type": kind}]


@answers("GET /nodes/{node}/lxc/{vmid}/interfaces")
def interfaces(cluster: Cluster, call: Call) -> Any:
    """What a running container says of its cards; nothing of one that is off."""
    guest = cluster.guest(call)
    if not guest.running:
        return None
    found = []
    for card in cards(guest):
        entry = {"name": card["name"], "hwaddr": card["mac"], "hardware-address": card["mac"]}
        if card["ip"]:
            entry |= {"inet": card["ip"], "ip-addresses": addresses(card["ip"])}
        found.append(entry)
    return found


@answers("POST /nodes/{node}/GUEST/{vmid}/vncproxy")
def vncproxy(cluster: Cluster, call: Call) -> dict[str, Any]:
    """A ticket to a console; nobody listens there."""
    guest = cluster.guest(call)

    def work(_task: Any) -> Process:
        yield Sleep(10.0)
        raise PveError("connection timed out")

    upid = cluster.begin(call, "vncproxy", work)
    ticket, _ = cluster.access._signed("PVEVNC", call.who), ""  # noqa: SLF001 - same make
    port = str(5900 + guest.vmid % 100)
    return {"user": call.who, "ticket": ticket, "port": port, "upid": upid, "cert": ""}
