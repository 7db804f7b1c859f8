"""A container's configuration as Proxmox VE writes it, and as LXC reads it: pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from essaim_lab.simulators.proxmox.schema import split

_RAW = re.compile(r"(lxc\.[a-z0-9_.-]+)\s*[:=]\s*(.*?)\s*")
_MOUNT = re.compile(r"mp\d+")
_INCLUDED = ("common.conf", "userns.conf")
#: Who the root of an unprivileged container is on the node, unless its file says otherwise.
USUAL_ROOT = 100_000


def pve_text(conf: Mapping[str, Any], before: str) -> str:
    """`/etc/pve/lxc/ID.conf`: the API's settings, and the raw lines that were in the file."""
    about = "".join(f"#{line}\n" for line in str(conf.get("description", "")).splitlines())
    settings = "".join(f"{k}: {v}\n" for k, v in sorted(conf.items()) if k != "description")
    return about + settings + "".join(f"{line}\n" for line in raw_lines(before))


def raw_lines(text: str) -> list[str]:
    """The lines for LXC itself in such a file, without those of its snapshots."""
    now = text.partition("\n[")[0].splitlines()
    return [line for line in now if _RAW.fullmatch(line)]


def is_for_lxc(text: str) -> bool:
    """Whether somebody wrote raw lines into the file."""
    return bool(raw_lines(text))


def lxc_text(
    conf: Mapping[str, Any],
    raw: Sequence[str],
    *,
    rootfs: str,
    address: str,
    gateway: str,
    shared: str = "/usr/share/lxc/config",
) -> str:
    """What LXC is started with.  Like Proxmox VE, an id map of the file replaces the usual one."""
    lines = [f"lxc.include = {shared}/{name}" for name in _INCLUDED[: 1 + _unprivileged(conf)]]
    lines += [
        f"lxc.uts.name = {conf.get('hostname', 'localhost')}",
        f"lxc.rootfs.path = dir:{rootfs}",
        "lxc.apparmor.profile = unconfined",
        "lxc.mount.auto = proc:mixed sys:mixed",
        "lxc.tty.max = 0",
        *_network(conf, address, gateway),
        *(_bind(str(value)) for key, value in sorted(conf.items()) if _is_bind(key, value)),
    ]
    if _unprivileged(conf) and not any(line.startswith("lxc.idmap") for line in raw):
        lines += [f"lxc.idmap = {kind} 0 {USUAL_ROOT} 65536" for kind in "ug"]
    lines += [f"{found[1]} = {found[2]}" for line in raw if (found := _RAW.fullmatch(line))]
    return "".join(f"{line}\n" for line in lines)


def shift(conf: Mapping[str, Any], raw: Sequence[str]) -> int:
    """Who the container's root is on the node."""
    for line in raw:
        words = line.replace("=", " ").replace(":", " ").split()
        if words[:3] == ["lxc.idmap", "u", "0"]:
            return int(words[3])
    return USUAL_ROOT if _unprivileged(conf) else 0


def _unprivileged(conf: Mapping[str, Any]) -> bool:
    return str(conf.get("unprivileged", 0)) == "1"


def _network(conf: Mapping[str, Any], address: str, gateway: str) -> list[str]:
    card = split(str(conf.get("net0", "")))
    lines = {
        "type": "veth",
        "link": "vmbr0",  # there is one network here, whatever the bridge is called
        "flags": "up",
        "name": card.get("name", "eth0"),
        "hwaddr": card.get("hwaddr", ""),
        "ipv4.address": address,
        "ipv4.gateway": gateway,
    }
    return [f"lxc.net.0.{key} = {value}" for key, value in lines.items() if value]


def _is_bind(key: str, value: Any) -> bool:
    return bool(_MOUNT.fullmatch(key)) and str(value).startswith("/")


def _bind(value: str) -> str:
    parts = split(value, "file")
    options = "bind,create=dir" + (",ro" if parts.get("ro") == "1" else "")
    return f"lxc.mount.entry = {parts['file']} {parts['mp'].lstrip('/')} none {options} 0 0"
