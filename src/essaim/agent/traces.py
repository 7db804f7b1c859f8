"""Traces that follow a uid on files of others: files named after it, and its entries in ACLs."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from essaim.agent.common import PROGRAM_WITHIN, remove_file, tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Where files of root are named after a uid, and how: journals, core dumps, sudo's, logind's.
_NAMED_AFTER = (
    ("/var/log/journal/*", r"user-([0-9]+)(?:@.*)?\.journal~?"),
    ("/run/log/journal/*", r"user-([0-9]+)(?:@.*)?\.journal~?"),
    ("/var/lib/systemd/coredump", r"core\..*\.([0-9]+)\.[0-9a-f]{32}\.[0-9]+\.[0-9]+.*"),
    ("/run/sudo/ts", "([0-9]+)"),
    ("/var/lib/sudo/ts", "([0-9]+)"),
    ("/var/lib/sudo/lectured", "([0-9]+)"),
    ("/run/user", "([0-9]+)"),
    ("/run/systemd/system.control", r"user-([0-9]+)\.slice\.d"),
)
#: Only packages and root write there, and most files of a machine are there.
_SYSTEM = ("/bin", "/boot", "/etc", "/lib", "/nix", "/proc", "/sbin", "/snap", "/sys", "/usr")
_ACLS = ("system.posix_acl_access", "system.posix_acl_default")
_ACL_HEAD, _ACL_ENTRY = struct.Struct("<I"), struct.Struct("<HHI")
_FOR_USER, _FOR_GROUP = 0x02, 0x08


class Named(NamedTuple):
    """A file that an ACL lets a leased account use."""

    path: str
    attribute: str
    value: bytes  #: the list without it


def files_named_after(has: Callable[[int], bool]) -> list[Path]:
    """List what is named after a uid that is meant."""
    found = []
    for places, pattern in _NAMED_AFTER:
        for place in Path("/").glob(places.lstrip("/")):
            with contextlib.suppress(OSError):
                for path in place.iterdir():
                    number = re.fullmatch(pattern, path.name)
                    if number and has(int(number.group(1))):
                        found.append(path)
    return found


def remove_files_named_after(has: Callable[[int], bool]) -> None:
    """Remove them."""
    for path in files_named_after(has):
        if path.is_dir() and not path.is_symlink():
            tool("rm", "-rf", "--one-file-system", "--", str(path), allow=(0, 1))
        else:
            remove_file(path)


class AclSearch:
    """Entries of access control lists for uids and gids that are meant, on files of others.

    Searched are all folders of these file systems but those that only packages and root write.
    Folders of live leases are left out: they may let in whom they like, and go with them.
    """

    def __init__(
        self, has: Callable[[int], bool], spared: Callable[[int], bool], mounts: list[str]
    ) -> None:
        self._has = has
        self._spared = spared
        self._mounts = mounts
        self._until = time.monotonic() + PROGRAM_WITHIN
        self.errors: list[str] = []  #: what could not be searched

    def remove(self) -> None:
        """Take the entries away; the others stay."""
        for one in self.entries():
            with contextlib.suppress(OSError):
                os.setxattr(one.path, one.attribute, one.value, follow_symlinks=False)

    def entries(self) -> Iterator[Named]:
        """Find them."""
        waiting = [mount for mount in self._mounts if mount not in _SYSTEM]
        others = set(self._mounts)
        while waiting:
            folder = waiting.pop()
            yield from self._of(folder)
            if time.monotonic() > self._until:
                self.errors.append(f"{folder}: no time left")
                return
            for entry in self._listed(folder):
                if not entry.is_dir(follow_symlinks=False):
                    if not entry.is_symlink():
                        yield from self._of(entry.path)
                elif entry.path not in others and entry.path not in _SYSTEM:
                    with contextlib.suppress(OSError):
                        if not self._spared(entry.stat(follow_symlinks=False).st_uid):
                            waiting.append(entry.path)

    def _listed(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as exc:
            self.errors.append(f"{folder}: {exc.strerror}")
            return []

    def _of(self, path: str) -> Iterator[Named]:
        with contextlib.suppress(OSError):
            for name in os.listxattr(path, follow_symlinks=False):
                if name in _ACLS:
                    value = os.getxattr(path, name, follow_symlinks=False)
                    less = without(value, self._has)
                    if less != value:
                        yield Named(path, name, less)


def without(value: bytes, has: Callable[[int], bool]) -> bytes:
    """Give an access control list, as the kernel does, without the entries for some."""
    kept = [
        (tag, rights, who)
        for tag, rights, who in _ACL_ENTRY.iter_unpack(value[_ACL_HEAD.size :])
        if not (tag in (_FOR_USER, _FOR_GROUP) and has(who))
    ]
    return value[: _ACL_HEAD.size] + b"".join(_ACL_ENTRY.pack(*entry) for entry in kept)
