"""What a machine sees of processors and memory: its own size instead of the computer's.

`nproc` follows the processors a machine runs on.  Other programs read files: /proc/meminfo,
/proc/cpuinfo and the list of processors in /sys are covered by ones that say the machine's size.
Some stay the computer's: /proc/stat, /proc/loadavg, /proc/uptime, and the system call sysinfo.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.drivers.sandbox import linux

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MEMINFO = "meminfo"
_PLACES = {
    MEMINFO: "proc/meminfo",
    "cpuinfo": "proc/cpuinfo",
    "online": "sys/devices/system/cpu/online",
}


def choose_cpus(cores: int, taken: Iterable[Sequence[int]], first: int) -> tuple[int, ...]:
    """Choose the processors of a machine: those that the fewest others of its stack run on.

    All there are when it wants as many or more.  `first` says where to begin, so that stacks
    which know nothing of each other do not all take the same.
    """
    there = sorted(os.sched_getaffinity(0))
    if not cores or cores >= len(there):
        return tuple(there)
    load = Counter(cpu for cpus in taken for cpu in cpus)
    turned = there[first % len(there) :] + there[: first % len(there)]
    return tuple(sorted(sorted(turned, key=lambda cpu: load[cpu])[:cores]))


def cpu_list(cpus: Sequence[int]) -> str:
    """Write processors as the kernel does: `0-2,5`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


@functools.lru_cache(maxsize=1)
def _host_cpuinfo() -> str:
    """Read it once: it takes milliseconds where there are many processors."""
    return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")


def warm_up() -> None:
    """Read now what every machine would have to read at its start."""
    with suppress(OSError):
        _host_cpuinfo()


def cpuinfo(cpus: Sequence[int]) -> str:
    """/proc/cpuinfo with these processors alone, by the numbers the kernel knows them by."""
    wanted = {str(cpu) for cpu in cpus}
    kept = []
    for part in _host_cpuinfo().split("\n\n"):
        name, _, number = part.partition("\n")[0].partition(":")
        if name.strip() != "processor" or number.strip() in wanted:
            kept.append(part)
    return "\n\n".join(kept)


def meminfo(total: int, used: int = 0, cached: int = 0) -> str:
    """/proc/meminfo of a machine with `total` MiB; `used` bytes, `cached` files among them.

    Lines have the same length whatever the numbers, so that a file can be overwritten in place.
    """
    whole = total << 10
    files = min(cached >> 10, whole)
    free = max(0, whole - (used >> 10))
    numbers = {
        "MemTotal": whole,
        "MemFree": free,
        "MemAvailable": min(whole, free + files),
        "Buffers": 0,
        "Cached": files,
        "SwapCached": 0,
        "SwapTotal": 0,
        "SwapFree": 0,
        "Shmem": 0,
        "SReclaimable": 0,
    }
    return "".join(f"{name + ':':<16}{number:>12} kB\n" for name, number in numbers.items())


def write_covers(home: Path, cpus: Sequence[int], memory: int) -> dict[str, Path]:
    """Write the files that show the machine's own size, by the places they are to cover.

    A machine that cannot be given one, on a full disk for instance, shows the computer's.
    """
    texts = {"cpuinfo": cpuinfo(cpus), "online": f"{cpu_list(cpus)}\n"} if cpus else {}
    if memory:
        texts[MEMINFO] = meminfo(memory)
    written = {}
    for name, text in texts.items():
        with suppress(OSError):
            (home / name).write_text(text)
            written[_PLACES[name]] = home / name
    return written


def cover(home: Path, cpus: Sequence[int], memory: int) -> None:
    """Lay those files over what shows the computer, below the working directory."""
    for place, file in write_covers(home, cpus, memory).items():
        with suppress(OSError):
            if Path(place).exists():
                linux.bind(str(file), place, readonly=True)


def refresh(home: Path, total: int, used: int, cached: int) -> None:
    """Say how much memory a running machine uses now."""
    with suppress(OSError):
        file = os.open(home / MEMINFO, os.O_WRONLY)
        try:
            os.pwrite(file, meminfo(total, used, cached).encode(), 0)
        finally:
            os.close(file)
