"""What the API is told about a machine: pure functions from what is wanted to parameters."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from essaim.drivers.proxmox.settings import Settings
from essaim.model.errors import RejectedError
from essaim.model.machines import Seed
from essaim.model.names import MachineName
from essaim.model.stacks import Image, Machine, Network

#: What a machine is made from, and which kind that makes.
_SOURCES = {"template": "", "ostemplate": "lxc", "disk": "qemu", "iso": "qemu"}
#: GiB of a disk that is made from nothing, when the size does not say.
_USUAL_DISK = 8
_TAG = "essaim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A machine to be made, with all that was settled before."""

    machine: Machine
    network: Network
    image: Image
    seed: Seed
    id: int
    card: str

    @property
    def name(self) -> MachineName:
        """Its name."""
        return self.machine.name


def source_of(image: Image) -> tuple[str, Any]:
    """What an image makes machines from; RejectedError when it is not one for this driver."""
    if image.builder == "template":
        for key in _SOURCES:
            if image.settings.get(key):
                return key, image.settings[key]
    raise RejectedError(
        f"image {image.name}: builder {image.builder} makes nothing a Proxmox site could use",
        hint="builder: template, with template: or ostemplate: naming what the site has",
    )


def kind_of(image: Image) -> str:
    """lxc, qemu, or nothing when any template of the name will do."""
    source, _ = source_of(image)
    return str(image.settings.get("kind") or _SOURCES[source])


def grows(wanted: Wanted) -> bool:
    """Whether a machine begins with the size of what it is made from, whatever it shall have."""
    return source_of(wanted.image)[0] in ("template", "disk")


def plane_tag(plane: str) -> str:
    """What all machines of a control plane carry."""
    return f"{_TAG}-{plane}"


def image_tag(digest: str) -> str:
    """Says what a machine was made from."""
    return f"{_TAG}-image-{digest}".lower()


def image_of(tags: frozenset[str]) -> str:
    """The digest that the tags of a machine tell."""
    prefix = image_tag("")
    return next((tag.removeprefix(prefix) for tag in tags if tag.startswith(prefix)), "")


def tags(plane: str, digest: str) -> str:
    """All that a finished machine carries."""
    return ";".join((_TAG, plane_tag(plane), image_tag(digest)))


def description(plane: str, wanted: Wanted) -> str:
    """Whose machine this is, for us and for people; the first line is theirs."""
    said = wanted.machine.labels.get("description") or str(wanted.name)
    facts = {
        "plane": plane,
        "stack": wanted.name.stack,
        "machine": wanted.name.machine,
        "address": wanted.machine.address,
        "image": wanted.image.name,
    }
    return f"{said}\n\n`essaim {json.dumps(facts, sort_keys=True)}`\n"


def owner(text: str) -> tuple[str, MachineName] | None:
    """Which control plane and machine a description names; None when it is not of ours."""
    _, mark, rest = text.rpartition("`essaim {")
    if not mark:
        return None
    try:
        facts, _ = json.JSONDecoder().raw_decode("{" + rest)
        return facts["plane"], MachineName(facts["stack"], facts["machine"])
    except (ValueError, KeyError, TypeError):
        return None


def clone(settings: Settings, plane: str, wanted: Wanted, kind: str, node: str) -> dict[str, Any]:
    """How a template is cloned; `node` only when it is another than the template's."""
    full = wanted.image.settings.get("clone") == "full"
    given: dict[str, Any] = {
        "newid": wanted.id,
        "hostname" if kind == "lxc" else "name": wanted.seed.hostname,
        "description": description(plane, wanted),
        "full": int(full),
    }
    storage = wanted.machine.labels.get("storage") or settings.storage
    if full and storage:
        given["storage"] = storage
    return given | _pool(settings) | ({"target": node} if node else {})


def config(settings: Settings, plane: str, wanted: Wanted, kind: str) -> dict[str, Any]:
    """What makes a clone this machine; the tags say that it is finished."""
    size = wanted.machine.size
    given: dict[str, Any] = {
        **dict(wanted.image.settings.get("config") or {}),
        "cores": size.cores,
        "memory": size.memory,
        "tags": tags(plane, wanted.image.digest),
    }
    if kind == "lxc":
        return given | {"net0": _container_card(settings, wanted)}
    return given | {"net0": _machine_card(settings, wanted)} | _cloud_init(settings, wanted)


def container(settings: Settings, plane: str, wanted: Wanted) -> dict[str, Any]:
    """How a container is made from an archive, in one call."""
    storage = _storage(settings, wanted)
    keys = "\n".join(key.strip() for key in wanted.seed.authorized_keys)
    given = config(settings, plane, wanted, "lxc")
    # For tags, rights on the pool do not count before the container is in it: they come last.
    del given["tags"]
    return {
        "unprivileged": 1,
        **given,
        "vmid": wanted.id,
        "ostemplate": wanted.image.settings["ostemplate"],
        "hostname": wanted.seed.hostname,
        "description": description(plane, wanted),
        "storage": storage,
        "rootfs": f"{storage}:{wanted.machine.size.disk or _USUAL_DISK}",
        **({"ssh-public-keys": keys} if keys else {}),
        **_pool(settings),
    }


def machine(settings: Settings, plane: str, wanted: Wanted) -> dict[str, Any]:
    """How a virtual machine is made from a disk image or a CD, in one call."""
    source, volume = source_of(wanted.image)
    storage = _storage(settings, wanted)
    size = wanted.machine.size.disk or _USUAL_DISK
    disk = f"{storage}:0,import-from={volume}" if source == "disk" else f"{storage}:{size}"
    second = f"{volume},media=cdrom" if source == "iso" else f"{storage}:cloudinit"
    given = config(settings, plane, wanted, "qemu")
    if grows(wanted) and wanted.machine.size.disk:
        del given["tags"]  # it is finished once its disk has grown
    return {
        "scsihw": "virtio-scsi-single",
        "ostype": "l26",
        "agent": "1",
        "boot": "order=scsi0;ide2" if source == "iso" else "order=scsi0",
        **given,
        "vmid": wanted.id,
        "name": wanted.seed.hostname,
        "description": description(plane, wanted),
        "scsi0": disk,
        "ide2": second,
        **_pool(settings),
    }


def _pool(settings: Settings) -> dict[str, Any]:
    return {"pool": settings.pool} if settings.pool else {}


def _storage(settings: Settings, wanted: Wanted) -> str:
    storage = wanted.machine.labels.get("storage") or settings.storage
    if not storage:
        raise RejectedError(
            f"site {settings.site} names no storage for {wanted.name}",
            hint="storage: one that takes disks of machines",
        )
    return storage


def is_static(settings: Settings, labels: Mapping[str, str]) -> bool:
    """Whether a machine is told its address, and does not ask for it."""
    return labels.get("address", "static" if settings.static else "dhcp") == "static"


def _bridge(settings: Settings, labels: Mapping[str, str]) -> list[str]:
    vlan = labels.get("vlan") or settings.vlan
    words = [f"bridge={labels.get('bridge') or settings.bridge}"]
    return words + ([f"tag={vlan}"] if vlan else [])


def _address(settings: Settings, wanted: Wanted) -> list[str]:
    labels = wanted.machine.labels
    if not is_static(settings, labels):
        return ["ip=dhcp"]
    prefix = ipaddress.ip_network(wanted.network.cidr).prefixlen
    gateway = labels.get("gateway") or settings.gateway
    words = [f"ip={wanted.machine.address}/{prefix}"]
    return words + ([f"gw={gateway}"] if gateway else [])


def has_moved(settings: Settings, wanted: Wanted, read: Callable[[], Mapping[str, Any]]) -> bool:
    """Whether a machine that does not ask for its address was told another one; `read` says."""
    if not is_static(settings, wanted.machine.labels):
        return False
    config = read()
    said = str(config.get("ipconfig0") or config.get("net0") or "")
    return _address(settings, wanted)[0] not in said.split(",")


def _container_card(settings: Settings, wanted: Wanted) -> str:
    words = ["name=eth0", *_bridge(settings, wanted.machine.labels)]
    words += [f"hwaddr={wanted.card.upper()}", *_address(settings, wanted), "type=veth"]
    return ",".join(words)


def _machine_card(settings: Settings, wanted: Wanted) -> str:
    words = [f"virtio={wanted.card.upper()}", *_bridge(settings, wanted.machine.labels)]
    return ",".join(words)


def _cloud_init(settings: Settings, wanted: Wanted) -> dict[str, Any]:
    keys = "\n".join(key.strip() for key in wanted.seed.authorized_keys)
    given = {
        "ciuser": wanted.image.settings.get("user") or "root",
        "ipconfig0": ",".join(_address(settings, wanted)),
    }
    # The API wants them encoded once more than a form is.
    return given | ({"sshkeys": quote(keys + "\n", safe="")} if keys else {})
