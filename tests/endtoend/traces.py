"""What a stack could leave behind on a computer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from endtoend.people import Person
from essaim.drivers.sandbox.cgroups import Cgroups


def traces(person: Person, stack: str) -> dict[str, list[str]]:
    """Processes, mounts, network devices, namespaces, cgroups and files of a person's stack."""
    place = str(person.state / "sandbox")
    return {
        "processes": sorted(_processes(place)),
        "mounts": sorted(line for line in _read("/proc/mounts").splitlines() if place in line),
        "devices": sorted(os.listdir("/sys/class/net")),
        "named namespaces": sorted(_list("/run/netns")),
        "cgroups": sorted(map(str, _cgroups(person.state / "sandbox" / stack))),
        "files": sorted(_list(place)),
    }


def machine_pid(person: Person, stack: str, machine: str) -> int:
    """The process that is number 1 on a machine, as the host counts."""
    console = str(person.state / "sandbox" / stack / "machines" / machine / "console.log")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        own = [line for line in _read(f"/proc/{pid}/status").splitlines() if "NSpid" in line]
        if own and own[0].split()[-1] == "1" and _output(pid) == console:
            return int(pid)
    raise LookupError(machine)


def _cgroups(stack: Path) -> Iterator[Path]:
    """Those of this person's stack: others may have one of the same name at the same time."""
    return (group for group in Cgroups.find(stack, rootless=False).stacks if group.exists())


def _output(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/2")
    except OSError:
        return ""


def _processes(place: str) -> list[str]:
    """Whatever was started from there, or writes to a console there."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        command = _read(f"/proc/{pid}/cmdline").replace("\0", " ")
        if int(pid) != os.getpid() and (place in command or place in _output(pid)):
            found.append(f"{pid} {command}")
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
