"""What copying needs of a place that holds files, and this computer as such a place."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes read from a file at once.
CHUNK = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """What a file system says about one of its entries."""

    mode: int  #: kind and permissions, as in `stat`
    size: int
    modified: float  #: seconds since 1970
    uid: int

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.mode)

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self.mode)

    @property
    def permissions(self) -> int:
        """Its permissions, without setuid, setgid and sticky bits."""
        return self.mode & 0o777


class Writer(Protocol):
    """A file being written from some offset on."""

    def write(self, data: bytes) -> None:
        """Append bytes."""


class FileSystem(Protocol):
    """Files on one computer.

    Paths are text as `os.fsdecode` makes it; relative ones begin where the account starts.  Every
    method raises OSError with a sensible errno, and TransientError when the connection is lost.
    """

    name: str  #: of the machine; empty for this computer

    def stat(self, path: str) -> FileInfo | None:
        """Look at an entry, following links; None when there is none."""

    def lstat(self, path: str) -> FileInfo | None:
        """Look at an entry itself; None when there is none."""

    def entries(self, path: str) -> list[tuple[str, FileInfo]]:
        """List a directory, without `.` and `..`, each as `lstat` sees it."""

    def read(self, path: str, offset: int) -> Iterator[bytes]:
        """Read a file from this offset to its end."""

    @contextmanager
    def write(self, path: str, offset: int) -> Iterator[Writer]:
        """Write a file: a new one at offset 0, otherwise one that is there.  Kept when it fails."""

    def move(self, path: str, to: str) -> None:
        """Rename, replacing a file that has the name."""

    def remove(self, path: str) -> None:
        """Remove a file or link."""

    def make_directory(self, path: str) -> None:
        """Make a directory that only its owner may enter for now."""

    def set_attributes(self, path: str, info: FileInfo) -> None:
        """Give an entry the permissions and the time of `info`."""

    def read_link(self, path: str) -> str:
        """Say where a link leads."""

    def make_link(self, path: str, to: str) -> None:
        """Make a symbolic link that leads to `to`."""

    def real_path(self, path: str) -> str:
        """Give the absolute path, with all links followed."""

    def owner(self) -> int:
        """Give the user id that files made here belong to."""


class LocalFiles:
    """The files of this computer."""

    name = ""

    def stat(self, path: str) -> FileInfo | None:
        """Look at an entry, following links."""
        return self._look(path, follow=True)

    def lstat(self, path: str) -> FileInfo | None:
        """Look at an entry itself."""
        return self._look(path, follow=False)

    @staticmethod
    def _look(path: str, *, follow: bool) -> FileInfo | None:
        try:
            return _info(os.stat(path, follow_symlinks=follow))  # noqa: PTH116 - paths are text here
        except FileNotFoundError:
            return None

    def entries(self, path: str) -> list[tuple[str, FileInfo]]:
        """List a directory."""
        with os.scandir(path) as entries:
            return [(each.name, _info(each.stat(follow_symlinks=False))) for each in entries]

    def read(self, path: str, offset: int) -> Iterator[bytes]:
        """Read a file from this offset to its end."""
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - paths are text here
            file.seek(offset)
            while data := file.read(CHUNK):
                yield data

    @contextmanager
    def write(self, path: str, offset: int) -> Iterator[Writer]:
        """Write a file: a new one at offset 0, otherwise one that is there."""
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        flags |= 0 if offset else os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0) as file:
            file.truncate(offset)
            file.seek(offset)
            yield _LocalWriter(file.fileno())

    def move(self, path: str, to: str) -> None:
        """Rename, replacing a file that has the name."""
        os.replace(path, to)  # noqa: PTH105 - paths are text here

    def remove(self, path: str) -> None:
        """Remove a file or link."""
        os.unlink(path)  # noqa: PTH108 - likewise

    def make_directory(self, path: str) -> None:
        """Make a directory that only its owner may enter for now."""
        os.mkdir(path, 0o700)  # noqa: PTH102 - likewise

    def set_attributes(self, path: str, info: FileInfo) -> None:
        """Give an entry the permissions and the time of `info`."""
        os.chmod(path, info.permissions)  # noqa: PTH101 - likewise
        os.utime(path, (info.modified, info.modified))

    def read_link(self, path: str) -> str:
        """Say where a link leads."""
        return os.readlink(path)  # noqa: PTH115 - likewise

    def make_link(self, path: str, to: str) -> None:
        """Make a symbolic link that leads to `to`."""
        os.symlink(to, path)  # noqa: PTH211 - likewise

    def real_path(self, path: str) -> str:
        """Give the absolute path, with all links followed."""
        return os.path.realpath(path)

    def owner(self) -> int:
        """Give the user id that files made here belong to."""
        return os.geteuid()


class _LocalWriter:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]


def _info(found: os.stat_result) -> FileInfo:
    return FileInfo(
        mode=found.st_mode, size=found.st_size, modified=found.st_mtime, uid=found.st_uid
    )


def failure(number: int, path: str) -> OSError:
    """Give the error of this number, of the class that Python has for it."""
    return OSError(number, os.strerror(number), path)


def not_a_file(path: str) -> OSError:
    """Say that something is neither a file nor a directory."""
    return OSError(errno.EINVAL, "neither a file nor a directory", path)
