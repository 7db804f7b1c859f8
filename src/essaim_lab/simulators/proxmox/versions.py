"""What differs between versions of Proxmox VE: who may ask the guest agent."""

from __future__ import annotations

from typing import Any

from essaim_lab.simulators.proxmox.roles import major

#: Since version 9 the one privilege VM.Monitor is split into one for each purpose.
_SPLIT_IN = 9
_UNRESTRICTED = "VM.GuestAgent.Unrestricted"
_AGENT = {
    "ping": "VM.GuestAgent.Audit",
    "network-get-interfaces": "VM.GuestAgent.Audit",
    "file-read": "VM.GuestAgent.FileRead",
    "file-write": "VM.GuestAgent.FileWrite",
    "exec": _UNRESTRICTED,
    "exec-status": _UNRESTRICTED,
}


def rule(name: str, usual: Any, version: str) -> Any:
    """The permission rule of an endpoint, METHOD /path, in that version; `usual` is that of 8."""
    path, mark, command = name.rpartition("/agent/")
    if not mark or "/qemu/" not in path or major(version) < _SPLIT_IN:
        return usual
    wanted = sorted({_AGENT[command], _UNRESTRICTED})
    return ["perm", "/vms/{vmid}", wanted, "any", 1]
