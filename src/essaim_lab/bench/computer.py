"""What the figures were measured on and with."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import essaim
from essaim_lab.bench.timing import timed

_PEERS = {
    "terraform": ("terraform", "version"),
    "ansible": (str(Path(sys.executable).with_name("ansible")), "--version"),
    "ssh": ("ssh", "-V"),
    "ip": ("ip", "-V"),
    "unshare": ("unshare", "--version"),
    "postgresql": ("psql", "--version"),
    "mariadb": ("mariadbd", "--version"),
    "redis": ("redis-server", "--version"),
    "caddy": ("caddy", "version"),
}


def describe() -> dict[str, Any]:
    """Describe this computer without naming it, and the versions of all that takes part."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _line("/proc/cpuinfo", "model name") or platform.machine(),
        "memory_mb": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 10**6,
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", "unknown"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "root": os.geteuid() == 0,
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "essaim": essaim.__version__,
        "peers": {name: _version(command) for name, command in _PEERS.items()},
    }


def sentence(about: dict[str, Any]) -> str:
    """Say the same in one line."""
    peers = ", ".join(f"{name}: {version}" for name, version in about["peers"].items())
    return (
        f"{about['cores']} cores ({about['processor']}), {about['memory_mb'] / 1000:.0f} GB, "
        f"{about['system']}, kernel {about['kernel']}, Python {about['python']}, "
        f"{'root' if about['root'] else 'rootless'}, load {about['load_before'][0]} before; {peers}"
    )


def _version(command: tuple[str, ...]) -> str:
    if shutil.which(command[0]) is None:
        return "not here"
    done = timed(command, environ={**os.environ, "CHECKPOINT_DISABLE": "1"}, within=30)
    lines = (done.out.strip() or done.err.strip()).splitlines()
    return lines[0] if lines else "unknown"


def _line(path: str, key: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return ""
