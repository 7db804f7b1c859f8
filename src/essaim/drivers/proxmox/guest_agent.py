"""The QEMU guest agent, asked through the API: files are read inside a virtual machine.

The account needs VM.Monitor for it; since Proxmox VE 9, VM.GuestAgent.FileRead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from essaim.drivers.proxmox.api import Api, ApiError
from essaim.drivers.proxmox.cluster import Guest
from essaim.drivers.proxmox.refusals import Refusal
from essaim.model.errors import EssaimError, RejectedError, TransientError

#: Any of these lets the account read files; a version knows only its own.
PRIVILEGES = frozenset({"VM.Monitor", "VM.GuestAgent.FileRead", "VM.GuestAgent.Unrestricted"})
NEEDED = "VM.Monitor (since Proxmox VE 9: VM.GuestAgent.FileRead)"
_INSTALL = "install qemu-guest-agent in its template, and set: qm set ID --agent 1"


def is_enabled(config: Mapping[str, Any]) -> bool:
    """Whether the configuration of a virtual machine gives it a guest agent."""
    parts = str(config.get("agent") or "0").split(",")
    return parts[0] == "1" or "enabled=1" in parts


def read_file(api: Api, guest: Guest, path: str) -> str:
    """Return the content of a file.

    TransientError while the machine, its agent or the file is not there yet.
    """
    try:
        answer: Mapping[str, Any] = api.get(f"{guest.path}/agent/file-read", file=path)
    except ApiError as error:
        raise _ours(guest, error) from error
    return str(answer.get("content") or "")


def _ours(guest: Guest, error: ApiError) -> EssaimError:
    what = f"guest agent of {guest.id}: {error.text}"
    if error.kind is Refusal.DENIED:
        return RejectedError(what, hint=f"give the account a role with {NEEDED}")
    if "No QEMU guest agent configured" in error.text:
        return RejectedError(what, hint=_INSTALL)
    return TransientError(what, hint=_INSTALL)
