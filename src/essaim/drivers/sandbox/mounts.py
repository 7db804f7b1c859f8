"""What is mounted in a machine besides its disk: /proc, /sys, /dev, and what is kept in memory."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.drivers.sandbox import linux

if TYPE_CHECKING:
    from essaim.drivers.sandbox.boot import Order

#: Where the directory with the stack's hosts file appears in a machine.
SHARED = "/run/essaim"
_DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}
_TTY = os.makedev(5, 0)
#: Parts of /proc that change the computer.
_COMPUTERS = ("sys", "sysrq-trigger", "irq", "bus", "fs", "scsi", "acpi")


def mount_rest(order: Order) -> None:
    """Mount everything that is not disk, below the working directory."""
    plain = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("proc", "proc", "proc", plain | linux.MS_NOEXEC)
    _mount_sys(order)
    linux.mount("tmpfs", "tmp", "tmpfs", plain, f"mode=1777{_half(order)}")
    linux.mount("tmpfs", "run", "tmpfs", plain, f"mode=0755{_half(order)}")
    for name, mode in (("sshd", 0o755), ("lock", 0o1777), (SHARED[5:], 0o755)):
        Path("run", name).mkdir()
        Path("run", name).chmod(mode)
    _mount_dev(order)


def protect_proc() -> None:
    """Keep root of the computer from changing it; only the network settings are a machine's own."""
    linux.bind("proc/sys/net", "proc/sys/net")
    kept = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    for name in _COMPUTERS:
        path = f"proc/{name}"
        with contextlib.suppress(FileNotFoundError):  # not every kernel has all of them
            linux.mount(path, path, flags=linux.MS_BIND | linux.MS_REC)
            flags = linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | kept
            linux.mount(path, path, flags=flags)


def _mount_sys(order: Order) -> None:
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    try:
        linux.mount("sysfs", "sys", "sysfs", flags | linux.MS_RDONLY)
    except PermissionError:
        return  # as where parts of the computer's own /sys are hidden; most do without
    if not order.cgroups:
        return
    if "cgroup.controllers" in (entry.name for entry in os.scandir(order.cgroups[0])):
        linux.mount("cgroup2", "sys/fs/cgroup", "cgroup2", flags)
        return
    linux.mount("tmpfs", "sys/fs/cgroup", "tmpfs", flags, "mode=0755")
    for group in order.cgroups:
        controller = group.parts[4]  # /sys/fs/cgroup/CONTROLLER/…
        Path("sys/fs/cgroup", controller).mkdir()
        linux.mount("cgroup", f"sys/fs/cgroup/{controller}", "cgroup", flags, controller)


def _half(order: Order) -> str:
    """Bound what is kept in memory to half of the machine's, as the kernel does for a computer."""
    memory = order.definition.memory
    return f",size={memory << 19}" if memory else ""


def _mount_dev(order: Order) -> None:
    linux.mount("tmpfs", "dev", "tmpfs", linux.MS_NOSUID, "mode=0755")
    for name, minor in _DEVICES.items():
        _device(name, os.makedev(1, minor))
    _device("tty", _TTY)
    for name in ("pts", "shm"):
        Path("dev", name).mkdir()
    quiet = linux.MS_NOSUID | linux.MS_NOEXEC
    linux.mount("devpts", "dev/pts", "devpts", quiet, "newinstance,ptmxmode=0666,mode=0620,gid=5")
    shared = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("tmpfs", "dev/shm", "tmpfs", shared, f"mode=1777{_half(order)}")
    for link, target in (
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ):
        Path("dev", link).symlink_to(target)


def _device(name: str, number: int) -> None:
    path = Path("dev", name)
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, number)
        path.chmod(0o666)
    except PermissionError:
        # Only real root may make devices; anyone may show one that is there.
        path.touch()
        linux.bind(f"/dev/{name}", str(path))
