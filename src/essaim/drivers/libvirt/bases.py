"""Images on the server: each is brought there once, whoever asks, and used only when it is whole.

A base is named after its content.  It is filled from the beginning, so that its length says how
much of it is there; when all of it is and its digest was compared, an empty volume beside it, the
*seal*, says so.
"""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from essaim.drivers.libvirt.connection import Connection
from essaim.drivers.libvirt.sdk import libvirt
from essaim.drivers.libvirt.storage import PIECE, Storage, send
from essaim.model.errors import RejectedError, TransientError
from essaim.model.stacks import Image

_HASH_WITHIN = 600.0
_MAGIC = b"QFI\xfb"
_BACKING, _SIZE = slice(8, 16), slice(24, 32)  #: of a qcow2 file's header


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A bootable file on this computer."""

    path: Path
    sha256: str
    size: int  #: of the file
    virtual: int  #: of the disk in it

    @property
    def volume(self) -> str:
        """What it is called on a server."""
        return f"base-{self.sha256[:16]}.qcow2"

    @property
    def seal(self) -> str:
        """The volume that says that it is whole there."""
        return f"base-{self.sha256[:16]}.whole"


def inspect(image: Image, path: Path) -> Base:
    """Look at an image's file; RejectedError when it is not a disk that can be used alone."""
    try:
        with path.open("rb") as file:
            header = file.read(_SIZE.stop)
        size = path.stat().st_size
    except OSError as error:
        raise RejectedError(
            f"image {image.name} is not at {path}: {error}", hint="build it first"
        ) from error
    if not header.startswith(_MAGIC) or len(header) < _SIZE.stop:
        raise RejectedError(f"image {image.name}: {path} is not a qcow2 disk")
    if any(header[_BACKING]):
        raise RejectedError(
            f"image {image.name}: {path} needs another file", hint="flatten it: qemu-img convert"
        )
    virtual = int.from_bytes(header[_SIZE], "big")
    return Base(path=path, sha256=_digest(path), size=size, virtual=virtual)


def _digest(path: Path) -> str:
    """The file's digest: what the cache wrote down beside it, or else read from it."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((path.parent / "manifest.json").read_bytes())["sha256"]
        if isinstance(found, str) and len(found) == hashlib.sha256().digest_size * 2:
            return found
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Bases:
    """The images of one server."""

    def __init__(self, connection: Connection, storage: Storage) -> None:
        self._connection = connection
        self._storage = storage
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[float, Base]] = {}

    def inspected(self, image: Image, path: Path) -> Base:
        """Look at a file once, and again when it has changed."""
        try:
            changed = path.stat().st_mtime
        except OSError:
            changed = 0.0
        with self._lock:
            if self._known.get(path, (None,))[0] != changed:
                self._known[path] = (changed, inspect(image, path))
            return self._known[path][1]

    def path(self, base: Base) -> str:
        """The base's file on the server, brought there if need be."""
        if (found := self._whole(base)) is not None:
            return found
        with self._storage.alone(f"base {base.sha256}"):
            if (found := self._whole(base)) is not None:
                return found
            return self._bring(base)

    def _whole(self, base: Base) -> str | None:
        if self._storage.find(base.seal) is None:
            return None
        volume = self._storage.find_file(base.volume)
        return None if volume is None else str(volume.path())

    def _bring(self, base: Base) -> str:
        self._storage.remove(base.seal)  # left by somebody who removed the base alone
        for _ in range(2):
            volume = self._storage.make(base.volume)
            self._fill(base, volume)
            path = str(volume.path())
            if self._remote_digest(volume, path) == base.sha256:
                self._storage.make(base.seal)
                return path
            self._storage.remove(base.volume)
        raise TransientError(
            f"site {self._connection.settings.site}: {base.volume} arrives there changed",
            hint="is the disk of the server full, or broken?",
        )

    def _fill(self, base: Base, volume: Any) -> None:
        there = volume.infoFlags(libvirt.VIR_STORAGE_VOL_GET_PHYSICAL)[2]
        if there >= base.size:
            return
        stream = self._connection.get().newStream(0)
        volume.upload(stream, there, base.size - there, 0)
        with base.path.open("rb") as file:
            file.seek(there)
            while piece := file.read(PIECE):
                send(stream, piece)
        stream.finish()

    def _remote_digest(self, volume: Any, path: str) -> str:
        """The digest of the file as the server has it."""
        done = self._connection.ssh("sha256sum", "--", path, within=_HASH_WITHIN)
        if done.returncode == 0:
            return done.stdout.decode().lstrip("\\").split()[0]
        # A system's volumes are not for the account to read, but libvirt hands them out.
        stream = self._connection.get().newStream(0)
        volume.download(stream, 0, 0, 0)
        digest = hashlib.sha256()
        while piece := stream.recv(PIECE):
            digest.update(piece)
        stream.finish()
        return digest.hexdigest()
