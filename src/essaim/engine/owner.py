"""Who holds a run: a process, named so that others on its host can tell whether it is dead."""

from __future__ import annotations

import os
import socket
from pathlib import Path

PROC = Path("/proc")


def this_owner() -> str:
    """Name this process: host, boot, process namespace, pid and its start time."""
    pid = os.getpid()
    return f"{_here()}:{pid}:{_started(pid)}"


def owner_is_dead(owner: str) -> bool:
    """Say whether that process is certainly gone.

    Only for one of this very host, boot and process namespace can that be known; of all others
    this says False, and their leases have to run out.
    """
    here, _, process = owner.rpartition(":")
    here, _, pid = here.rpartition(":")
    if here != _here() or not pid.isdigit():
        return False
    return _started(int(pid)) != process


def _here() -> str:
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (PROC / "self/ns/pid").readlink().name.strip("pid:[]")
    except OSError:
        # Without these nothing is certain: the pid makes this place equal to no other.
        boot, namespace = "unknown", str(os.getpid())
    return f"{socket.gethostname()[:64]}:{boot}:{namespace}"


def _started(pid: int) -> str:
    """Return when the process began, in the kernel's ticks; empty when there is none."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()  # the name before it may contain anything
    return "" if state in "ZX" else fields[18]
