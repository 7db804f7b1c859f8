"""Mounts that a leased account may leave: found and taken away without asking their file systems.

A file system in user space answers when its owner likes, if ever, so nothing here looks into one:
the kernel's own table says what is mounted where, and by whom.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds until a file system that does not let itself be taken away is given up.
DETACHED_WITHIN = 30.0
_FORCE, _DETACH = 1, 2
_NEW_NAMESPACE = 0x20000
_FUSE_USER = re.compile(r"(?:^|,)user_id=([0-9]+)(?:,|$)")
_RUNTIME = re.compile(r"/run/user/([0-9]+)")
_CODED = re.compile(rb"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of the kernel's table."""

    number: int
    device: str
    root: str
    path: str
    kind: str
    options: str  #: of the file system

    @property
    def owner(self) -> int:
        """The uid it was mounted for; -1 when that is not said."""
        found = _FUSE_USER.search(self.options) if self.is_fuse() else _RUNTIME.fullmatch(self.path)
        return int(found.group(1)) if found else -1

    def is_fuse(self) -> bool:
        """Whether a process of somebody is the file system."""
        return self.kind.split(".")[0] in {"fuse", "fuseblk"}


def mount_table() -> list[Mount]:
    """Read what is mounted in this process's namespace, in the order it was."""
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        words = line.split()
        kind, _, options = words[words.index(b"-") + 1 :][:3]
        number, _, device, root, path = words[:5]
        texts = [_decoded(word) for word in (device, root, path, kind, options)]
        found.append(Mount(int(number), *texts))
    return found


def _decoded(word: bytes) -> str:
    return os.fsdecode(_CODED.sub(lambda found: bytes([int(found.group(1), 8)]), word))


def below(path: str, folder: str) -> bool:
    """Say whether a path is a folder or in it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def left_mounts(has: Callable[[int], bool], leased: Callable[[str], bool]) -> list[Mount]:
    """List mounts of the uids that are meant, and those in homes of accounts that are meant.

    Whoever mounted those: a folder that an administrator lends is not the lease's to keep either.
    """
    homes = [os.path.realpath("/home"), "/media", "/run/media"]
    found = []
    for mount in mount_table():
        names = [
            mount.path[len(home) + 1 :].split("/")[0]
            for home in homes
            if below(mount.path, home) and mount.path != home
        ]
        if has(mount.owner) or any(leased(name) for name in names):
            found.append(mount)
    return found


def detach_mounts(has: Callable[[int], bool], leased: Callable[[str], bool]) -> None:
    """Take them away, here and where the machine's first process sees them."""
    _in_child(lambda: _detach_all(has, leased))
    with contextlib.suppress(OSError):
        first = Path("/proc/1/ns/mnt")
        if first.stat().st_ino != Path("/proc/self/ns/mnt").stat().st_ino:
            _in_child(lambda: _detach_all(has, leased), namespace=first)


def _in_child(work: Callable[[], None], namespace: Path | None = None) -> None:
    """Do it in a process that can be left behind when a file system holds it up."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            if namespace is not None:
                fd = os.open(str(namespace), os.O_RDONLY | os.O_CLOEXEC)
                if _libc().setns(fd, _NEW_NAMESPACE):
                    os._exit(1)
            work()
        os._exit(0)
    until = time.monotonic() + DETACHED_WITHIN
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            return
        time.sleep(0.002)


def _detach_all(has: Callable[[int], bool], leased: Callable[[str], bool]) -> None:
    """The last one first: what is mounted over another hides it."""
    for mount in reversed(left_mounts(has, leased)):
        with contextlib.suppress(OSError):
            _detach_one(mount)


def _detach_one(mount: Mount) -> None:
    fd = _walk_to(mount.path)
    try:
        # Only if it is the mount that was meant, and not where a link leads meanwhile.
        about = Path(f"/proc/self/fdinfo/{fd}").read_text().split()
        if int(about[about.index("mnt_id:") + 1]) != mount.number:
            return
        # What waits for an answer of a process is told that none will come.
        flags = _DETACH | (_FORCE if mount.is_fuse() else 0)
        _libc().umount2(os.fsencode(f"/proc/self/fd/{fd}"), flags)
    finally:
        os.close(fd)


def _libc() -> Any:
    import ctypes  # noqa: PLC0415 - slow to load, and most machines have no such mounts

    return ctypes.CDLL(None)


def _walk_to(path: str) -> int:
    """Open a place without following links, and without a word to its file system."""
    fd = os.open("/", os.O_PATH | os.O_CLOEXEC)
    for name in path.strip("/").split("/"):
        try:
            following = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        finally:
            os.close(fd)
        fd = following
    return fd
