"""System calls that Python 3.11 does not offer; each raises OSError like those of `os`."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MNT_DETACH = 0x2

_PR_CAPBSET_DROP = 24
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace (or that namespace of the process) `fd` stands for."""
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount; a bind mount when `flags` say so."""
    data = options.encode() or None
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data
    )
    _check(result, f"mount {kind or source} on {target}")


def bind(source: str, target: str, *, readonly: bool = False) -> None:
    """Make `source` appear at `target`."""
    mount(source, target, flags=MS_BIND)
    if readonly:
        # A locked flag that is left out makes a rootless remount fail, so repeat what is there.
        kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
        mount(source, target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


def umount(target: str) -> None:
    """Detach the mount at `target` and all below it."""
    _check(_libc.umount2(target.encode(), ctypes.c_int(MNT_DETACH)), f"umount {target}")


def pivot_root_here() -> None:
    """Make the working directory, a mount point, the root; the old root is gone."""
    number = _PIVOT_ROOT[os.uname().machine]
    # With both arguments "." the old root ends up stacked on the new one and can be detached there.
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    umount(".")
    os.chdir("/")


def sethostname(name: str) -> None:
    """Set the host name of this UTS namespace."""
    raw = name.encode()
    _check(_libc.sethostname(raw, ctypes.c_size_t(len(raw))), "sethostname")


def drop_capability(number: int) -> None:
    """Make sure that no program started from here on can have that capability."""
    _check(_libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0), "prctl")
