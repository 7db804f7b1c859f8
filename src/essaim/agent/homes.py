"""Save the home of an account in layers, as no more than that account.

A layer is a tar.gz.  Its first member, `.essaim-layer`, says in JSON when the walk began by this
machine's clock (`at`, in ms), every name that is kept (`names`), and which folder is which
(`folders`: name and inode), for what is in a renamed folder does not look changed.  All folders
follow, and of files and links those changed since a former layer's `at`: the kernel sets a file's
ctime, and nobody else can.  Not kept: what the account itself cannot read, sockets, pipes,
devices, owners, attributes, special mode bits; and, of a home larger than the cap, the largest
files.  A file that has room again only later comes with its next change or the next whole copy.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import os
import stat
import tarfile
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

from essaim.agent.mounts import below, mount_table

LAYER = ".essaim-layer"  #: the name of the first member; a file of that name is not kept
MTIME = "ESSAIM.mtime"  #: a file's time in ns: the one of the format is rounded
#: What the ends of the formats may cost, and one entry apart from its content.
_SLACK, _ENTRY = 64 * 1024, 640
#: Folders in folders: nobody's work is deeper, and what walks them has limits.
DEEPEST = 200
#: The clock that a file's ctime is never behind; it lags a little behind the usual one.
COARSE = 5


class Kept(NamedTuple):
    """Something in a home, as it was when the walk came by."""

    name: str
    mode: int
    size: int
    changed: int  #: its ctime in ns
    inode: str


class Outlet:
    """Lets bytes out, in base64 where the way is not safe for bytes."""

    def __init__(self, file: IO[bytes], *, text: bool) -> None:
        self._file = file
        self._text = text
        self._rest = b""

    def write(self, data: bytes) -> int:
        """Let some bytes out."""
        body = bytes(data)
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


def pack(home: str, most: int, outlet: Outlet, since: int = 0) -> None:
    """Write a layer of at most so many bytes; with `since`, in ms, of what has changed since."""
    at = int(time.clock_gettime(COARSE) * 1000)
    # A clock that was set back says nothing about what is new.
    changed = since * 1_000_000 if since <= at else 0
    kept = within(walk(home), most)
    about = {
        "at": at,
        "names": [one.name for one in kept],
        "folders": [[one.name, one.inode] for one in kept if stat.S_ISDIR(one.mode)],
    }
    packed = gzip.GzipFile(fileobj=outlet, mode="wb", compresslevel=1, mtime=0)
    with packed, tarfile.open(fileobj=packed, mode="w|", encoding="utf-8") as archive:
        text = json.dumps(about).encode()
        header = tarfile.TarInfo(LAYER)
        header.size = len(text)
        archive.addfile(header, io.BytesIO(text))
        for one in kept:
            if stat.S_ISDIR(one.mode) or one.changed >= changed:
                with contextlib.suppress(OSError):  # it has just gone: the next layer knows
                    _pack_one(archive, home, one)
    outlet.finish()


def walk(home: str) -> list[Kept]:
    """List what can be kept of a home, folders before what is in them."""
    # File systems mounted there are not of the home, and one may never answer.
    top = os.path.realpath(home)
    others = {mount.path for mount in mount_table() if below(mount.path, top)}
    found, waiting = [], [""]
    while waiting:
        folder = waiting.pop()
        try:
            names = sorted(os.listdir(os.path.join(home, folder)))  # noqa: PTH118, PTH208 - any bytes
        except OSError:
            continue
        for name in names:
            one = None
            if not others or os.path.join(top, folder, name) not in others:  # noqa: PTH118 - any bytes
                one = _look(home, os.path.join(folder, name))  # noqa: PTH118 - any bytes
            if one is not None:
                found.append(one)
                if stat.S_ISDIR(one.mode) and one.name.count("/") < DEEPEST:
                    waiting.append(one.name)
    return found


def _look(home: str, name: str) -> Kept | None:
    path = os.path.join(home, name)  # noqa: PTH118 - names may be any bytes
    try:
        seen = os.lstat(path)
    except OSError:
        return None
    regular, folder = stat.S_ISREG(seen.st_mode), stat.S_ISDIR(seen.st_mode)
    if name == LAYER or not (regular or folder or stat.S_ISLNK(seen.st_mode)):
        return None
    if regular and not os.access(path, os.R_OK):
        return None
    size = seen.st_size if regular else 0
    inode = f"{seen.st_dev}:{seen.st_ino}"
    return Kept(name, seen.st_mode, size, seen.st_ctime_ns, inode)


def within(found: list[Kept], most: int) -> list[Kept]:
    """Choose what fits into so many bytes, whatever can be compressed; the largest stay behind.

    The choice depends on nothing but the home, so that a changed file is always in its layer.
    """
    room, dropped = most - _SLACK, set()
    by_size = sorted(found, key=lambda one: (not stat.S_ISDIR(one.mode), one.size, one.name))
    for one in by_size:
        room -= one.size + one.size // 1000 + _ENTRY + 8 * len(os.fsencode(one.name))
        if room < 0:
            dropped.add(one.name)
    return [one for one in found if one.name not in dropped]


def _pack_one(archive: tarfile.TarFile, home: str, one: Kept) -> None:
    path = os.path.join(home, one.name)  # noqa: PTH118 - names may be any bytes
    if not stat.S_ISREG(one.mode):
        entry = _anonymous(archive.gettarinfo(path, one.name), os.lstat(path))
        if not entry.isreg():
            archive.addfile(entry)
        return
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags), "rb") as file:
        entry = archive.gettarinfo(arcname=one.name, fileobj=file)
        # One that is growing was not counted in full; its end comes with the next layer.
        entry.size = min(entry.size, one.size)
        steady: Any = Steady(file)
        archive.addfile(_anonymous(entry, os.fstat(file.fileno())), steady)


def _anonymous(entry: tarfile.TarInfo, seen: os.stat_result) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = int(entry.mtime)
    entry.pax_headers = {MTIME: str(seen.st_mtime_ns)}
    return entry


def home_of(account: str) -> str:
    """Say where an account's home is."""
    return str(Path("/home", account))
