"""What a new cluster holds: its templates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from essaim_lab.simulators.proxmox.settings import TemplateSettings
from essaim_lab.simulators.proxmox.state import Guest


def template(each: TemplateSettings, new_mac: Callable[[], str]) -> Guest:
    """Make a machine others are cloned from."""
    key = each.disk or ("rootfs" if each.kind == "lxc" else "scsi0")
    conf: dict[str, Any] = {
        key: f"{each.storage}:base-{each.vmid}-disk-0,size={each.gib}G",
        "memory": 512 if each.kind == "lxc" else 2048,
        "cores": 1,
        "template": 1,
    }
    if each.kind == "lxc":
        net = f"name=eth0,bridge=vmbr0,hwaddr={new_mac()},ip=dhcp,type=veth"
        conf |= {"hostname": each.name, "arch": "amd64", "ostype": "debian", "swap": 512}
        conf |= {"net0": net, "unprivileged": 1}
    else:
        conf |= {"name": each.name, "agent": "1", "ostype": "l26", "scsihw": "virtio-scsi-pci"}
        conf |= {"net0": f"virtio={new_mac()},bridge=vmbr0", "boot": f"order={key}"}
        if each.cloud_init:
            conf["ide2"] = f"{each.storage}:vm-{each.vmid}-cloudinit,media=cdrom,size=4M"
    return Guest(each.vmid, each.kind, each.node, conf)
