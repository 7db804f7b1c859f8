"""The definition of a domain: what libvirt is told about a machine, and what can be read back.

Facts about the machine are in the domain's metadata, under a namespace of our own, so that the
server alone says what is there.  No secret is among them.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, fields
from typing import Any
from xml.etree import ElementTree as ET

from essaim.drivers.libvirt.ports import group_address, inner_network, mac_address
from essaim.model.names import MachineName

NAMESPACE = "urn:essaim:machine:1"
#: Of the element that differs after every start.
BOOT_NAMESPACE = "urn:essaim:boot:1"
_QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
_TAG = f"{{{NAMESPACE}}}machine"
_BOOT_TAG = f"{{{BOOT_NAMESPACE}}}boot"
_UUIDS = uuid.UUID("6e6ea1a9-5e1f-5f0c-9a37-0f6f4f1e2b6d")
#: Slots of the PCI bus that libvirt, which fills it from below, does not reach.
_ACCESS_SLOT, _CLUSTER_SLOT = "0x1d", "0x1e"
#: MiB of translated code; without a bound it grows to a quarter of the machine's memory and more.
_TCG_CACHE = "128"

for _prefix, _uri in (("essaim", NAMESPACE), ("boot", BOOT_NAMESPACE), ("qemu", _QEMU)):
    ET.register_namespace(_prefix, _uri)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a domain's metadata says about the machine that it is."""

    plane: str
    stack: str
    machine: str
    address: str
    cidr: str
    image: str  #: its digest
    port: int  #: on the server's loopback, which leads to the machine's port 22
    mac: int  #: number of its network cards
    group: int = 0  #: number of the multicast group its stack meets in
    accelerator: str = "tcg"
    content: str = ""  #: digest of the disk it was made over
    internet: int = 0  #: 1 for a machine that reaches what the server reaches

    @property
    def name(self) -> MachineName:
        """The machine's name."""
        return MachineName(self.stack, self.machine)

    @property
    def door(self) -> tuple[str, int]:
        """Address and port where the server finds the machine's SSH."""
        # One that was adopted has no port of the server's, but an address that the server knows.
        return ("127.0.0.1", self.port) if self.port else (self.address, 22)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a machine is made of."""

    cores: int
    memory: int  #: MiB
    disk: str  #: paths on the server
    seed: str
    log: str
    network: str = ""  #: a network of libvirt; without one the stack's group is used


def domain_name(name: MachineName) -> str:
    """What a machine is called on the server; neither part of its name can hold a dot."""
    return f"{name.stack}.{name.machine}"


def build(facts: Facts, hardware: Hardware) -> str:
    """Write the definition of a machine's domain."""
    kvm = facts.accelerator == "kvm"
    domain = ET.Element("domain", type="kvm" if kvm else "qemu")
    _text(domain, "name", domain_name(facts.name))
    _text(domain, "uuid", str(uuid.uuid5(_UUIDS, f"{facts.plane}/{facts.name}")))
    _text(domain, "title", f"Essaim: {facts.name}")
    metadata = ET.SubElement(domain, "metadata")
    ET.SubElement(metadata, _TAG, {key: str(value) for key, value in asdict(facts).items()})
    _text(domain, "memory", str(hardware.memory), unit="MiB")
    _text(domain, "vcpu", str(hardware.cores))
    system = ET.SubElement(domain, "os")
    _text(system, "type", "hvm", arch="x86_64", machine="pc")
    ET.SubElement(system, "boot", dev="hd")
    _processor(domain, kvm=kvm)
    clock = ET.SubElement(domain, "clock", offset="utc")
    ET.SubElement(clock, "timer", name="hpet", present="no")
    for event, then in (("poweroff", "destroy"), ("reboot", "restart"), ("crash", "destroy")):
        _text(domain, f"on_{event}", then)
    _devices(ET.SubElement(domain, "devices"), facts, hardware)
    words = [*_access(facts), *([] if hardware.network else _cluster(facts))]
    commandline = ET.SubElement(domain, f"{{{_QEMU}}}commandline")
    for word in words:
        ET.SubElement(commandline, f"{{{_QEMU}}}arg", value=word)
    return ET.tostring(domain, encoding="unicode")


def _text(parent: ET.Element, tag: str, text: str, **attributes: str) -> None:
    ET.SubElement(parent, tag, attributes).text = text


def _processor(domain: ET.Element, *, kvm: bool) -> None:
    features = ET.SubElement(domain, "features")
    ET.SubElement(features, "acpi")
    ET.SubElement(features, "apic")
    if kvm:
        ET.SubElement(domain, "cpu", mode="host-passthrough")
        return
    _text(ET.SubElement(features, "tcg"), "tb-cache", _TCG_CACHE, unit="MiB")
    cpu = ET.SubElement(domain, "cpu", mode="maximum")
    # Five levels of page tables make every address dearer to emulate.
    ET.SubElement(cpu, "feature", policy="disable", name="la57")


def _devices(devices: ET.Element, facts: Facts, hardware: Hardware) -> None:
    _disk(devices, "vda", hardware.disk, "qcow2", discard="unmap")
    ET.SubElement(_disk(devices, "vdb", hardware.seed, "raw"), "readonly")
    serial = ET.SubElement(devices, "serial", type="pty")
    ET.SubElement(serial, "log", file=hardware.log, append="off")
    ET.SubElement(serial, "target", port="0")
    ET.SubElement(ET.SubElement(devices, "console", type="pty"), "target", type="serial", port="0")
    rng = ET.SubElement(devices, "rng", model="virtio")
    _text(rng, "backend", "/dev/urandom", model="random")
    if hardware.network:
        card = ET.SubElement(devices, "interface", type="network")
        ET.SubElement(card, "mac", address=mac_address(facts.mac))
        ET.SubElement(card, "source", network=hardware.network)
        ET.SubElement(card, "model", type="virtio")
    ET.SubElement(devices, "controller", type="usb", model="none")
    ET.SubElement(devices, "memballoon", model="none")


def _disk(devices: ET.Element, target: str, path: str, form: str, **driver: str) -> ET.Element:
    disk = ET.SubElement(devices, "disk", type="file", device="disk")
    ET.SubElement(disk, "driver", {"name": "qemu", "type": form, **driver})
    ET.SubElement(disk, "source", file=path)
    ET.SubElement(disk, "target", dev=target, bus="virtio")
    return disk


def _access(facts: Facts) -> list[str]:
    card = f"virtio-net-pci,netdev=access,mac={mac_address(facts.mac, access=True)}"
    # Without a ROM, firmware does not try to boot from the network.
    where = f"bus=pci.0,addr={_ACCESS_SLOT},romfile="
    return ["-netdev", _access_net(facts), "-device", f"{card},{where}"]


def _access_net(facts: Facts) -> str:
    inner = inner_network(facts.cidr)
    # Restricted, it lets SSH in and nothing out: neither to the server nor to what is around it.
    restrict = "" if facts.internet else ",restrict=on"
    return f"user,id=access,net={inner}{restrict},hostfwd=tcp:127.0.0.1:{facts.port}-:22"


def _cluster(facts: Facts) -> list[str]:
    address, port = group_address(facts.group)
    net = f"socket,id=cluster,mcast={address}:{port},localaddr=127.0.0.1"
    card = f"virtio-net-pci,netdev=cluster,mac={mac_address(facts.mac)}"
    return ["-netdev", net, "-device", f"{card},bus=pci.0,addr={_CLUSTER_SLOT},romfile="]


def read_facts(text: str) -> Facts | None:
    """What a domain's definition says about the machine; None when it is not one of ours."""
    found = ET.fromstring(text).find(f"./metadata/{_TAG}")  # noqa: S314 - what libvirt itself wrote
    if found is None:
        return None
    given = [
        (field, found.attrib[field.name]) for field in fields(Facts) if field.name in found.attrib
    ]
    try:
        values: dict[str, Any] = {
            field.name: int(text) if field.type == "int" else text for field, text in given
        }
        return Facts(**values)
    except (TypeError, ValueError):
        return None  # edited by hand: not to be touched


def read_boot(text: str) -> str:
    """What distinguishes this start of the domain from the others, as far as we made it."""
    found = ET.fromstring(text).find(f"./metadata/{_BOOT_TAG}")  # noqa: S314 - what libvirt itself wrote
    return found.get("id", "") if found is not None else ""


def boot_element(token: str) -> str:
    """The metadata that marks a start."""
    return ET.tostring(ET.Element("boot", id=token), encoding="unicode")


def has_access(text: str, facts: Facts) -> bool:
    """Whether a definition has the access network that the facts ask for."""
    return any(word.get("value") == _access_net(facts) for word in _access_words(text))


def _access_words(text: str | ET.Element) -> list[ET.Element]:
    domain = ET.fromstring(text) if isinstance(text, str) else text  # noqa: S314 - libvirt's own
    words = domain.iterfind(f"./{{{_QEMU}}}commandline/{{{_QEMU}}}arg")
    return [word for word in words if word.get("value", "").startswith("user,id=access,")]


def with_access(text: str, facts: Facts) -> str:
    """The same definition with the access network that the facts say."""
    domain = ET.fromstring(text)  # noqa: S314 - what libvirt itself wrote
    found = domain.find(f"./metadata/{_TAG}")
    if found is not None:
        found.set("port", str(facts.port))
        found.set("internet", str(facts.internet))
    for word in _access_words(domain):
        word.set("value", _access_net(facts))
    return ET.tostring(domain, encoding="unicode")
