"""System calls that Python 3.11 does not offer; each raises OSError like those of `os`."""

from __future__ import annotations

import ctypes
import os
import signal
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
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

_MOUNT_ATTR_IDMAP = 0x100000
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
#: Newer system calls have one number on every kind of processor.
_OPEN_TREE, _MOVE_MOUNT, _CLONE3, _MOUNT_SETATTR = 428, 429, 435, 442
_PR_CAPBSET_DROP = 24
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}

_libc = ctypes.CDLL(None, use_errno=True)
_held = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock during a call


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


def clone(flags: int) -> int:
    """Fork, like `os.fork`, with the child in the new namespaces named by `flags`.

    Only so does a PID namespace belong to a user namespace that the caller itself does not enter.
    """
    arguments = struct.pack("=8Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = _held.syscall(ctypes.c_long(_CLONE3), arguments, ctypes.c_size_t(len(arguments)))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    _check(pid, "clone3")
    return pid


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


def clone_mount(path: str, *, flags: int = 0, users: int | None = None) -> int:
    """Return a mount of `path` that is nowhere yet, as a file descriptor for `attach`.

    `users` stands for a user namespace: owners on disk then appear as those it maps them to.
    """
    how = ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC)
    tree: int = _libc.syscall(
        ctypes.c_long(_OPEN_TREE), ctypes.c_int(_AT_FDCWD), os.fsencode(path), how
    )
    _check(tree, f"open_tree {path}")
    idmap = 0 if users is None else _MOUNT_ATTR_IDMAP
    attributes = struct.pack("=4Q", flags | idmap, 0, 0, users or 0)
    done = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(tree),
        b"",
        ctypes.c_uint(_AT_EMPTY_PATH),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    try:
        _check(done, f"mount_setattr {path}")
    except OSError:
        os.close(tree)
        raise
    return tree


def attach(tree: int, target: str) -> None:
    """Put what `clone_mount` returned at `target`."""
    done = _libc.syscall(
        ctypes.c_long(_MOVE_MOUNT),
        ctypes.c_int(tree),
        b"",
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH),
    )
    _check(done, f"move_mount on {target}")


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
