"""Looks at a school in the end: every student has one machine, and nothing else of ours is left."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address

from endtoend.school_rig import POOL, Plane, School, card_text
from servers.nameservers import FORWARD


def check(its: School, *planes: Plane, beside: dict[str, str] | None = None) -> None:
    """Every student has exactly one machine, known to all servers; there is nothing else of ours.

    `beside` are names of strangers in the zone besides www.
    """
    guests, cards = its.guests(), {}
    wanted = {(plane.name, login) for plane in planes for login in plane.students}
    assert len(guests) == len(wanted), _more(guests, planes)
    tags = [_check_plane(its, plane, guests, cards) for plane in planes]
    assert len(set(tags)) == len(planes)
    addresses = {login: address for login, (_card, address) in cards.items()}
    names = {f"vm-{login}": address for login, address in addresses.items()}
    strangers = {"www": "10.77.0.200", **(beside or {})}
    _same("DNS", its.named().items(), {**strangers, **names}.items())
    _same("DNS backwards", its.backwards().items(), {a: name for name, a in names.items()}.items())
    rows = {(card, address, f"vm-{login}.{FORWARD}") for login, (card, address) in cards.items()}
    _same("DHCP", its.admitted(), rows)
    ours = {key: found for key, found in its.published().items() if found[1]}
    desktops = {
        (plane.name, f"vm-{login}"): (addresses[login], frozenset({login}))
        for plane in planes
        for login in plane.students
    }
    _same("Guacamole", ours.items(), desktops.items())
    _same("the pool", its.cluster.cluster.pools[POOL].vms, guests.keys())


def _same(where: str, found: Iterable, wanted: Iterable) -> None:
    found, wanted = set(found), set(wanted)
    assert found == wanted, f"{where} has also {found - wanted} and lacks {wanted - found}"


def _check_plane(its: School, plane: Plane, guests: dict, cards: dict) -> str:
    """Look at the machines and the store of one control plane; gives the tag of its machines."""
    held = plane.held("vmid")
    machines = [f"{plane.name}/{login}" for login in plane.students]
    assert sorted(held.values()) == machines
    macs = {holder: number for number, holder in plane.held("mac").items()}
    assert sorted(macs) == machines
    students = plane.rows(
        "SELECT login, standing, address, machine FROM student WHERE standing != 'failed' "
        "ORDER BY login"
    )
    assert [(row[0], row[1]) for row in students] == [(who, "ready") for who in plane.students]
    by_machine = {machine: (login, address) for login, _, address, machine in students}
    tags = set()
    for number, holder in held.items():
        guest = guests[number]
        login, address = by_machine[holder]
        card = card_text(macs[holder])
        assert guest.name == f"vm-{login}"
        assert "lock" not in guest.conf
        assert guest.running, f"{guest.name} on {guest.node} is off"
        assert card in guest.conf["net0"].lower()
        assert f"vm-{number}-disk-0" in guest.conf.get("rootfs", ""), f"{guest.name} has no disk"
        assert f'"machine": "{login}"' in guest.conf["description"]
        tags |= {tag for tag in guest.conf["tags"].split(";") if len(tag.split("-")) == 2}
        cards[login] = (card, address)
    assert plane.held("leftover") == {}
    own = {str(IPv4Address(number)) for number in plane.held("address")}
    assert own == {address for _login, address in by_machine.values()}
    # What a killed command was about to begin is given back by the next that works, in a minute.
    assert plane.rows("SELECT holder FROM adaptive_use WHERE task != ''") == []
    (tag,) = tags
    return tag


def _more(guests: dict, planes: tuple[Plane, ...]) -> str:
    held = {
        number: (plane.name, who) for plane in planes for number, who in plane.held("vmid").items()
    }
    left = {plane.name: plane.held("leftover") for plane in planes}
    lines = [f"set aside: {left}"]
    for number, guest in sorted(guests.items()):
        if number not in held:
            lines.append(f"{number} {guest.name} {guest.node} {guest.running} {guest.conf}")
    return "\n".join(lines)
