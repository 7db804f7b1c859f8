"""Processes of this computer, known by their number and the moment they began."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICK = os.sysconf("SC_CLK_TCK")
# Positions after the command's name in /proc/PID/stat; see proc(5).
_STATE, _USER, _CHILDREN_SYSTEM, _STARTED = 0, 11, 14, 19


@dataclass(frozen=True, slots=True)
class Stat:
    """A process that lives."""

    started: str  #: in ticks since the computer was started: no two of one number share it
    cpu_seconds: float  #: user and system, with those of children it has waited for


def look(pid: int) -> Stat | None:
    """Look at a process; None when there is none, or nothing but its exit code."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name is in parentheses and may itself hold anything, parentheses too.
    fields = text.rpartition(")")[2].split()
    if fields[_STATE] in "ZX":
        return None
    ticks = sum(int(word) for word in fields[_USER : _CHILDREN_SYSTEM + 1])
    return Stat(fields[_STARTED], ticks / _TICK)


def boot() -> str:
    """Name this start of this computer: numbers and ticks of another mean nothing."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def send(pid: int, started: str, number: signal.Signals) -> None:
    """Send a signal to that process, and to no other that has its number by now."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        found = look(pid)
        if found and found.started == started:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return  # it ended just now
    finally:
        os.close(handle)
