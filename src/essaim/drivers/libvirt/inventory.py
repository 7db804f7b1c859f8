"""Every domain of a server, whoever made it, and how one that is not ours is adopted.

A domain without our metadata is only ever looked at.  To adopt one is to write that metadata, and
nothing else; to give it back is to take the metadata away.  An adopted domain keeps its name, its
disks and its definition, has no port of ours (0), and is reached at its own address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree as ET

from essaim.drivers.libvirt.definition import BOOT_NAMESPACE, NAMESPACE, Facts, read_facts
from essaim.drivers.libvirt.sdk import libvirt
from essaim.model.errors import RejectedError, UnknownError
from essaim.model.machines import Found, Power
from essaim.model.names import MachineName
from essaim.model.stacks import Machine, Network

#: The access port of a machine that was adopted: it has none.
NO_PORT = 0


def inventory(conn: Any, plane: str) -> Sequence[Found]:
    """List every domain of the server that this account may see, by name."""
    return sorted(
        (_found(domain, plane) for domain in conn.listAllDomains(0)), key=lambda one: one.name
    )


def adopted(conn: Any, plane: str, name: MachineName) -> Any:
    """Find the domain that was adopted as that machine; None when there is none."""
    for domain in conn.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_PERSISTENT):
        facts = read_facts(domain.XMLDesc(0))
        if facts and is_adopted(facts) and facts.plane == plane and facts.name == name:
            return domain
    return None


def is_adopted(facts: Facts) -> bool:
    """Whether a domain of ours was made by somebody else."""
    return facts.port == NO_PORT


def adopt(conn: Any, plane: str, id: str, machine: Machine, network: Network) -> None:  # noqa: A002 - Found's
    """Write our metadata into a stranger's domain.  Nothing if it is that machine already.

    `machine.image` is the digest of the image it counts as being made from.
    """
    domain = _by_id(conn, id)
    facts = read_facts(domain.XMLDesc(0))
    wanted = Facts(
        plane=plane,
        stack=machine.name.stack,
        machine=machine.name.machine,
        address=machine.address,
        cidr=network.cidr,
        image=machine.image,
        port=NO_PORT,
        mac=0,
    )
    if facts == wanted:
        return
    _refuse(conn, domain, facts, wanted)
    element = ET.Element("machine", {key: str(value) for key, value in asdict(wanted).items()})
    _set(domain, ET.tostring(element, encoding="unicode"))


def give_back(domain: Any) -> None:
    """Take our metadata out of an adopted domain, and leave all the rest as it is."""
    _set(domain, None, BOOT_NAMESPACE)
    _set(domain, None)


def _by_id(conn: Any, id: str) -> Any:  # noqa: A002 - Found's
    try:
        return conn.lookupByUUIDString(id)
    except libvirt.libvirtError as error:
        known = (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_INVALID_ARG)
        if error.get_error_code() not in known:
            raise
        raise UnknownError(
            f"there is no machine {id}", hint="essaim inventory --site SITE lists them"
        ) from error


def _refuse(conn: Any, domain: Any, facts: Facts | None, wanted: Facts) -> None:
    name = domain.name()
    if facts and facts.plane != wanted.plane:
        raise RejectedError(
            f"{name} belongs to another control plane", hint="whoever runs that one gives it back"
        )
    if facts:
        raise RejectedError(f"{name} is already {facts.name}", hint="give it back first")
    if not domain.isPersistent():
        raise RejectedError(
            f"{name} is gone when it is powered off, so nobody can look after it",
            hint=f"on the server: virsh dumpxml {name} > it.xml; virsh define it.xml",
        )
    holder = next((d for d in conn.listAllDomains(0) if _is(d, wanted)), None)
    if holder is not None:
        raise RejectedError(f"{wanted.name} is there already: {holder.name()}")


def _is(domain: Any, wanted: Facts) -> bool:
    facts = read_facts(domain.XMLDesc(0))
    return facts is not None and (facts.plane, facts.name) == (wanted.plane, wanted.name)


def _set(domain: Any, element: str | None, space: str = NAMESPACE) -> None:
    flags = libvirt.VIR_DOMAIN_AFFECT_CONFIG
    if domain.isActive():
        flags |= libvirt.VIR_DOMAIN_AFFECT_LIVE
    domain.setMetadata(
        libvirt.VIR_DOMAIN_METADATA_ELEMENT,
        element,
        "essaim" if element else None,
        space,
        flags,
    )


def _found(domain: Any, plane: str) -> Found:
    text = domain.XMLDesc(0)
    facts = read_facts(text)
    ours = facts is not None and facts.plane == plane
    detail = _detail(text)
    if facts is not None and not ours:
        detail["note"] = "belongs to another control plane"
    elif facts is not None and is_adopted(facts):
        detail["note"] = "adopted"
    elif not domain.isPersistent():
        detail["note"] = "gone when it is powered off"
    return Found(
        id=domain.UUIDString(),
        name=domain.name(),
        power=Power.ON if domain.isActive() else Power.OFF,
        owner=str(facts.name) if facts is not None and ours else "",
        detail=detail,
    )


def _detail(text: str) -> dict[str, str]:
    """What people want to know of a machine before they adopt it."""
    root = ET.fromstring(text)  # noqa: S314 - what libvirt itself wrote
    memory = int(root.findtext("memory", "0")) // 1024
    disks = [
        source.get("file") or source.get("dev") or source.get("volume") or ""
        for source in root.iterfind("./devices/disk[@device='disk']/source")
    ]
    return {
        "cores": root.findtext("vcpu", "1"),
        "memory": f"{memory} MiB",
        "accelerator": "kvm" if root.get("type") == "kvm" else "tcg",
        "disks": " ".join(disks),
    }
