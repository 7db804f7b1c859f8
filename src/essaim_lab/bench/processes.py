"""What processes cost, read from /proc: the CPU time and the memory of whole trees."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_PROC = Path("/proc")
_TICK = os.sysconf("SC_CLK_TCK")

# Positions after the command name in /proc/PID/stat, which see proc(5).
_STATE, _PARENT, _USER, _CHILDREN_SYSTEM = 0, 1, 11, 14


@dataclass(frozen=True, slots=True)
class Stat:
    """One process at one moment."""

    pid: int
    parent: int
    state: str  #: `Z` when it has ended and nobody has asked for its exit code
    cpu: float  #: seconds, user and system, with those of children it has waited for


def stat(pid: int) -> Stat | None:
    """Look at a process; None when there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in parentheses and may itself hold anything, spaces and parentheses too.
    fields = text.rpartition(")")[2].split()
    ticks = sum(int(word) for word in fields[_USER : _CHILDREN_SYSTEM + 1])
    return Stat(pid, int(fields[_PARENT]), fields[_STATE], ticks / _TICK)


def cpu(pid: int) -> float:
    """Seconds of CPU a process has used, with children it has waited for; 0 when it is gone."""
    found = stat(pid)
    return found.cpu if found else 0.0


def busy() -> float:
    """Seconds that the processors of this computer have worked, whoever they worked for."""
    words = (_PROC / "stat").read_text().split(maxsplit=9)[1:9]
    user, nice, system, _idle, _wait, hard, soft, _stolen = map(int, words)
    return (user + nice + system + hard + soft) / _TICK


def resident(pid: int) -> int:
    """Bytes of memory a process has now (RSS); 0 when it is gone."""
    try:
        words = (_PROC / str(pid) / "statm").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE")


def threads(pid: int) -> int:
    """How many threads a process has now; 0 when it is gone."""
    try:
        return len(list((_PROC / str(pid) / "task").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def everybody() -> Iterator[Stat]:
    """Look at all processes of this computer."""
    for entry in _PROC.iterdir():
        found = stat(int(entry.name)) if entry.name.isdigit() else None
        if found:
            yield found


def tree(roots: Iterable[int]) -> list[Stat]:
    """Give those of `roots` that live, and all their descendants."""
    by_pid: dict[int, Stat] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for one in everybody():
        by_pid[one.pid] = one
        children[one.parent].append(one.pid)
    found: dict[int, Stat] = {}
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid in by_pid and pid not in found:
            found[pid] = by_pid[pid]
            waiting += children[pid]
    return list(found.values())


def children_of(pid: int) -> set[int]:
    """Give the direct children of a process."""
    return {one.pid for one in everybody() if one.parent == pid}


def named(words: str) -> list[int]:
    """Give the processes whose command line contains `words`, except this one."""
    wanted = words.encode()
    found = []
    for one in everybody():
        try:
            line = (_PROC / str(one.pid) / "cmdline").read_bytes().replace(b"\0", b" ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if wanted in line and one.pid != os.getpid():
            found.append(one.pid)
    return found


def memory(pids: Iterable[int]) -> int:
    """Bytes these processes occupy; what several share is divided among them (PSS)."""
    total = 0
    for pid in pids:
        try:
            text = (_PROC / str(pid) / "smaps_rollup").read_text()
        except OSError:
            continue  # it has ended
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total * 1024


def tmpfs(pids: Collection[int]) -> int:
    """Bytes in those tmpfs that these processes see and this one does not."""
    ours = {device for device, _ in _tmpfs_mounts(os.getpid())}
    used: dict[str, int] = {}
    for pid in pids:
        for device, where in _tmpfs_mounts(pid):
            if device in ours or device in used:
                continue
            try:
                volume = os.statvfs(_PROC / str(pid) / "root" / where.lstrip("/"))
            except OSError:
                continue  # covered by another mount, or its process has ended
            used[device] = (volume.f_blocks - volume.f_bfree) * volume.f_frsize
    return sum(used.values())


def _tmpfs_mounts(pid: int) -> list[tuple[str, str]]:
    """Give (device, mount point) of every tmpfs in the mount namespace of a process."""
    try:
        lines = (_PROC / str(pid) / "mountinfo").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        left, _, right = line.partition(" - ")
        if right.startswith("tmpfs "):
            words = left.split()
            found.append((words[2], words[4].encode().decode("unicode_escape")))
    return found


def available() -> int:
    """Bytes the kernel could still give to programs (MemAvailable)."""
    for line in (_PROC / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def disk(path: Path) -> int:
    """Bytes a directory takes on disk."""
    total = 0
    for parent, directories, files in os.walk(path):
        for name in (*directories, *files):
            try:
                total += os.lstat(Path(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue  # it went away while we looked
    return total
