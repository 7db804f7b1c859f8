"""Make a home from its saved layers, as no more than the account whose home it is."""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import stat
import tarfile
import zlib
from typing import IO, Any

from essaim.agent.common import Trouble
from essaim.agent.homes import LAYER, MTIME

LONGEST_HEADER = 64 << 20
#: Bytes of a home, when nobody says how large it may be.
MOST = 1 << 30
#: How much longer a layer may be than what it keeps: names and the ends of blocks.
_MARGIN = 2
_PIECE = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_ASIDE = ".essaim-aside-"
#: Troubles of the machine and not of one file.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


class Part:
    """So many bytes of a longer stream."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream = stream
        self._left = size

    def read(self, size: int = -1) -> bytes:
        """Read as much as was asked for, or what is left."""
        wanted = self._left if size < 0 else min(size, self._left)
        body = self._stream.read(wanted)
        self._left -= len(body)
        return body


class Plain:
    """What a layer is unpacked from: Trouble when there is more of it than a home may hold.

    A few hundred kilobytes can be packed so that they become gigabytes.
    """

    def __init__(self, packed: Any, most: int) -> None:
        self._file = gzip.GzipFile(fileobj=packed)
        self._left = most

    def read(self, size: int = _PIECE) -> bytes:
        """Read at most so many bytes."""
        body = self._file.read(min(size, self._left + 1))
        self._left -= len(body)
        if self._left < 0:
            raise Trouble("what was to be restored is refused: it is larger than a home may be")
        return body


class Restoring:
    """A home that becomes what its layers say, each unpacked over the ones before it.

    Whatever a layer holds, nothing is written outside of the home: a name or a hard link that
    leads out, or a device, ends it all with Trouble, for no `save` has written that.  Owners and
    special mode bits are dropped.
    """

    def __init__(self, home: str, most: int = MOST) -> None:
        self._home = home
        self._most = most * _MARGIN
        self._root = os.open(home, _FOLDER)
        self._folders: dict[str, str] = {}  #: inode to name, as of the layer before
        self._last: dict[str, tuple[int, int]] = {}  #: folder to mode and time
        self.counts = {"restored": 0, "skipped": 0}
        self._loosen()

    def _loosen(self) -> None:
        """Make folders writable for the time being: the account's own, made by its own layers."""
        for path, folders, _ in os.walk(self._home):
            for name in folders:
                inside = os.path.join(path, name)  # noqa: PTH118 - names may be any bytes
                with contextlib.suppress(OSError):
                    seen = os.lstat(inside)
                    if stat.S_ISDIR(seen.st_mode):
                        key = os.path.relpath(inside, self._home)
                        self._last[key] = (stat.S_IMODE(seen.st_mode) & 0o777, seen.st_mtime_ns)
                        os.chmod(inside, 0o700)  # noqa: PTH101 - names may be any bytes

    def unpack(self, stream: Any) -> None:
        """Unpack one layer; Trouble when it is damaged."""
        try:
            plain = Plain(stream, self._most)
            with tarfile.open(fileobj=plain, mode="r|", encoding="utf-8") as archive:  # type: ignore[call-overload]
                first = True
                for entry in archive:
                    if first and entry.name == LAYER and entry.isreg():
                        self._adjust(_about(archive, entry))
                    else:
                        self._unpack_one(archive, entry)
                    first = False
                while plain.read(_PIECE):
                    pass  # tarfile overlooks that an end is missing; the check sum does not
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as exc:
            raise Trouble(f"what was to be restored is damaged: {exc}") from exc

    def close(self) -> None:
        """Give folders their modes and times: last, for every file in them changes the time."""
        for name in sorted(self._last, key=lambda name: -name.count("/")):
            mode, when = self._last[name]
            with contextlib.suppress(OSError):
                fd = _descend(self._root, name.split("/"))
                os.utime(fd, ns=(when, when))
                os.fchmod(fd, mode)
                os.close(fd)
        os.close(self._root)

    def _adjust(self, about: dict[str, Any]) -> None:
        """Rename folders as they were renamed since the layer before, and remove what is gone."""
        now = {inode: "/".join(_inside(name)) for name, inode in about["folders"]}
        names = {"/".join(_inside(name)) for name in about["names"]}
        stay = {inode: name for inode, name in self._folders.items() if inode in now}
        if any(name != now[inode] for inode, name in stay.items()):
            self._rearrange(stay, now)
        self._folders = now
        self._prune(names)

    def _rearrange(self, old: dict[str, str], new: dict[str, str]) -> None:
        """Take the tree of folders apart and build it anew: places may have been exchanged."""
        aside = {inode: f"{_ASIDE}{number}" for number, inode in enumerate(old)}
        for inode in sorted(old, key=lambda inode: -old[inode].count("/")):
            self._rename(old[inode], aside[inode])
        self._prune(set(aside.values()), files=False)
        for inode in sorted(old, key=lambda inode: new[inode].count("/")):
            self._rename(aside[inode], new[inode])

    def _rename(self, old: str, new: str) -> None:
        # Not there or in the way: then what is in it is in this layer, or was never saved.
        with contextlib.suppress(OSError), contextlib.ExitStack() as both:
            ends = []
            for name in (old, new):
                *folders, last = name.split("/")
                fd = _descend(self._root, folders, make=name == new)
                both.callback(os.close, fd)
                ends.append((last, fd))
            _clear(*ends[1])
            os.rename(ends[0][0], ends[1][0], src_dir_fd=ends[0][1], dst_dir_fd=ends[1][1])

    def _prune(self, names: set[str], *, files: bool = True) -> None:
        """Remove what is not named; without `files` only whole folders of the home itself."""
        for path, folders, others, fd in os.fwalk(".", topdown=False, dir_fd=self._root):
            inside = os.path.normpath(path)
            if not files and (inside == "." or inside.split("/")[0] in names):
                others = []  # noqa: PLW2901 - they stay
            for name in (*others, *folders):
                whole = os.path.normpath(os.path.join(path, name))  # noqa: PTH118 - any bytes
                if whole not in names and (files or whole.split("/")[0] not in names):
                    with contextlib.suppress(OSError):
                        _clear(name, fd)

    def _unpack_one(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        parts = _inside(entry.name)
        if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
            raise Trouble(f"what was to be restored is refused: {entry.name!r} is a device")
        try:
            folder = _descend(self._root, parts[:-1], make=True)
            try:
                self._place(archive, entry, folder, parts)
            finally:
                os.close(folder)
            self.counts["restored"] += 1
        except OSError as exc:
            if exc.errno in _NO_ROOM:
                raise Trouble(f"the home cannot be restored: {exc}") from exc
            self.counts["skipped"] += 1

    def _place(
        self, archive: tarfile.TarFile, entry: tarfile.TarInfo, folder: int, parts: list[str]
    ) -> None:
        name, when = parts[-1], _when(entry)
        if entry.isdir():
            _make_folder(name, folder)
            self._last["/".join(parts)] = (entry.mode & 0o777, when)
            return
        _clear(name, folder)
        if entry.issym():
            os.symlink(entry.linkname, name, dir_fd=folder)
            os.utime(name, ns=(when, when), dir_fd=folder, follow_symlinks=False)
        elif entry.islnk():
            self._link(entry, folder, name)
        else:
            source = archive.extractfile(entry)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
                while source is not None and (piece := source.read(_PIECE)):
                    file.write(piece)
                file.flush()
                os.fchmod(file.fileno(), entry.mode & 0o777)
                os.utime(file.fileno(), ns=(when, when))

    def _link(self, entry: tarfile.TarInfo, folder: int, name: str) -> None:
        parts = _inside(entry.linkname)
        other = _descend(self._root, parts[:-1])
        try:
            os.link(parts[-1], name, src_dir_fd=other, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(other)


def restore_layers(
    stream: IO[bytes], sizes: list[int], home: str, most: int = MOST
) -> dict[str, int]:
    """Make a home of at most so many bytes from layers that follow each other in a stream."""
    restoring = Restoring(home, most)
    try:
        for size in sizes:
            restoring.unpack(Part(stream, size))
    finally:
        restoring.close()
    return restoring.counts


def _about(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> dict[str, Any]:
    """Read a layer's first member."""
    source = archive.extractfile(entry)
    if source is None or entry.size > LONGEST_HEADER:
        raise Trouble(f"what was to be restored is refused: its {LAYER} is too long")
    try:
        about = json.loads(source.read())
        names = [str(name) for name in about["names"]]
        folders = [(str(name), str(inode)) for name, inode in about.get("folders", [])]
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise Trouble(f"what was to be restored is damaged: {LAYER}: {exc}") from exc
    return {"names": names, "folders": folders}


def _when(entry: tarfile.TarInfo) -> int:
    with contextlib.suppress(ValueError):
        return int(entry.pax_headers.get(MTIME, ""))
    return int(entry.mtime) * 1_000_000_000


def _inside(name: str) -> list[str]:
    """Split a name into its parts; Trouble when it does not stay below the home."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name or not parts:
        raise Trouble(f"what was to be restored is refused: {name!r} leads out of the home")
    return parts


def _descend(root: int, parts: list[str], *, make: bool = False) -> int:
    """Open a folder below the root without ever following a link."""
    here = os.dup(root)
    for part in parts:
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=here)
            deeper = os.open(part, _FOLDER, dir_fd=here)
        finally:
            os.close(here)
        here = deeper
    return here


def _make_folder(name: str, folder: int) -> None:
    """Make a folder unless it is there; what else has its name goes."""
    try:
        os.close(os.open(name, _FOLDER, dir_fd=folder))
    except OSError:
        _clear(name, folder)
        os.mkdir(name, 0o700, dir_fd=folder)


def _clear(name: str, folder: int) -> None:
    """Remove whatever has a name; a folder only when it is empty."""
    with contextlib.suppress(FileNotFoundError):
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            os.rmdir(name, dir_fd=folder)
