"""Carry the home of an account from one machine to another, as no more than that account."""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
import stat
import tarfile
import zlib
from pathlib import Path
from typing import IO, Any

from essaim.agent.common import Trouble

#: What the compressor may still hold back, and what a header may cost.
_SLACK = 256 * 1024
_PIECE = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Outlet:
    """Counts what goes out, and writes it in base64 where the way is not safe for bytes."""

    def __init__(self, file: IO[bytes], *, text: bool) -> None:
        self._file = file
        self._text = text
        self._rest = b""
        self.count = 0

    def write(self, data: bytes) -> int:
        """Let some bytes out."""
        body = bytes(data)
        self.count += len(body)
        if self._text:
            whole = self._rest + body
            cut = len(whole) - len(whole) % 3
            self._rest = whole[cut:]
            self._file.write(base64.b64encode(whole[:cut]))
        else:
            self._file.write(body)
        return len(body)

    def flush(self) -> None:
        """Nothing is held back but what `finish` writes."""

    def finish(self) -> None:
        """Write what is left of the last three bytes."""
        self._file.write(base64.b64encode(self._rest))
        self._file.flush()


class Steady:
    """A file that keeps the length it was said to have, though somebody may be cutting it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        """Read exactly as much as was asked for."""
        return self._file.read(size).ljust(size, b"\0")


def pack(home: str, most: int, outlet: Outlet) -> None:
    """Write a tar.gz of a home, without what would make it larger than `most` bytes."""
    packed = gzip.GzipFile(fileobj=outlet, mode="wb", compresslevel=1, mtime=0)
    with packed, tarfile.open(fileobj=packed, mode="w|", encoding="utf-8") as archive:
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            for name in _entries(home, folder):
                inside = os.path.join(folder, name)  # noqa: PTH118 - names may be any bytes
                with contextlib.suppress(OSError):
                    if _pack_one(archive, home, inside, lambda: most - outlet.count):
                        waiting.append(inside)
    outlet.finish()


def _entries(home: str, folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(os.path.join(home, folder)))  # noqa: PTH118, PTH208 - any bytes
    except OSError:
        return []
    # Keys are not the account's own: they are given to it on every machine anew.
    return [name for name in names if folder or name != ".ssh"]


def _pack_one(archive: tarfile.TarFile, home: str, inside: str, room: Any) -> bool:
    """Add one entry; True when it is a folder whose entries are to follow."""
    path = os.path.join(home, inside)  # noqa: PTH118 - names may be any bytes
    mode = os.lstat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)) or room() < _SLACK:
        return False
    if not stat.S_ISREG(mode):
        archive.addfile(_anonymous(archive.gettarinfo(path, inside)))
        return stat.S_ISDIR(mode)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags), "rb") as file:
        entry = _anonymous(archive.gettarinfo(arcname=inside, fileobj=file))
        # Compressed it may be smaller, but nobody knows before it is too late.
        if entry.size + entry.size // 1000 + _SLACK <= room():
            steady: Any = Steady(file)
            archive.addfile(entry, steady)
    return False


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def unpack(stream: IO[bytes], home: str) -> dict[str, int]:
    """Unpack a tar.gz below a home, whatever it holds: nothing is written anywhere else.

    Names that lead out, devices and keys are skipped; owners and special mode bits are dropped.
    """
    counts = {"restored": 0, "skipped": 0}
    root = os.open(home, _FOLDER)
    folders: list[tuple[list[str], int]] = []
    try:
        plain = gzip.GzipFile(fileobj=stream)
        with plain, tarfile.open(fileobj=plain, mode="r|", encoding="utf-8") as archive:
            for entry in archive:
                parts = _inside(entry.name)
                done = bool(parts) and _unpack_one(archive, entry, root, parts)
                counts["restored" if done else "skipped"] += 1
                if done and entry.isdir():
                    folders.append((parts, entry.mode & 0o777))
            while plain.read(_PIECE):
                pass  # tarfile overlooks that an end is missing; the check sum does not
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as exc:
        raise Trouble(f"what was to be restored is damaged: {exc}") from exc
    finally:
        # Last, for a folder that cannot be written could not have been filled.
        for parts, mode in reversed(folders):
            with contextlib.suppress(OSError):
                fd = _descend(root, parts)
                os.fchmod(fd, mode)
                os.close(fd)
        os.close(root)
    return counts


def _inside(name: str) -> list[str]:
    """Split a name into its parts; nothing when it does not stay below the home."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    bad = name.startswith("/") or ".." in parts or "\0" in name or parts[:1] == [".ssh"]
    return [] if bad else parts


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


def _unpack_one(
    archive: tarfile.TarFile, entry: tarfile.TarInfo, root: int, parts: list[str]
) -> bool:
    if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
        return False
    try:
        folder = _descend(root, parts[:-1], make=True)
    except OSError:
        return False  # a link or a file is in the way
    try:
        _place(archive, entry, folder, parts[-1], root)
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def _place(
    archive: tarfile.TarFile, entry: tarfile.TarInfo, folder: int, name: str, root: int
) -> None:
    if entry.isdir():
        os.close(_descend(folder, [name], make=True))
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    if entry.issym():
        os.symlink(entry.linkname, name, dir_fd=folder)
    elif entry.islnk():
        _link(entry, folder, name, root)
    else:
        source = archive.extractfile(entry)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
            while source is not None and (piece := source.read(_PIECE)):
                file.write(piece)
            file.flush()
            os.fchmod(file.fileno(), entry.mode & 0o777)
            os.utime(file.fileno(), (entry.mtime, entry.mtime))


def _link(entry: tarfile.TarInfo, folder: int, name: str, root: int) -> None:
    parts = _inside(entry.linkname)
    if not parts:
        raise OSError(f"{entry.linkname} leads out")
    other = _descend(root, parts[:-1])
    try:
        os.link(parts[-1], name, src_dir_fd=other, dst_dir_fd=folder, follow_symlinks=False)
    finally:
        os.close(other)


def home_of(account: str) -> str:
    """Say where an account's home is."""
    return str(Path("/home", account))
