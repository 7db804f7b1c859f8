"""Copies of the homes of leases: one full copy of each, and layers of what changed since.

Every process of a control plane must see the same folder, or each restores only what it copied.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import io
import os
import re
import shutil
import tarfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim.model.errors import RejectedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: After so many layers, or when they outweigh the full copy, the next one is full again.
MOST_LAYERS = 20
MOST_WEIGHT = 2

LABEL = ".essaim-layer"
SUFFIX = ".tar.gz"
#: What stands first in the label, and how many bytes of it are looked at.
_AT = re.compile(rb'\{"at": *([0-9]{1,15})[,}]')
_BEGIN = 64


@dataclass(frozen=True, slots=True, order=True)
class _Layer:
    """One file; its name says all there is to know."""

    series: int  #: grows with every full copy; only the last one counts
    number: int  #: 0 is the full copy
    node: str
    at: int  #: when the walk began, in the node's clock

    @property
    def file(self) -> str:
        return f"{self.series:08d}.{self.number:03d}.{self.node}.{self.at}{SUFFIX}"


class Homes:
    """Keeps, for each machine of each lease, what is needed to have its home again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def since(self, lease: str, place: int, node: str) -> int:
        """Return from when on the next copy is to hold changes, in the node's clock; 0 for all."""
        folder, layers = self._current(lease, place)
        if not layers or layers[0].node != node or len(layers) > MOST_LAYERS:
            return 0
        sizes = [(folder / layer.file).stat().st_size for layer in layers]
        return 0 if sum(sizes) > MOST_WEIGHT * sizes[0] + (1 << 16) else layers[-1].at

    def add(self, lease: str, place: int, node: str, data: bytes, *, full: bool) -> None:
        """Keep one more copy, whole or not at all.  A full one takes the place of all before."""
        folder, layers = self._current(lease, place)
        if self.sealed(lease, place, node) or (not full and (not layers or layers[0].node != node)):
            return  # what it builds upon was replaced or forgotten meanwhile
        last = layers[-1] if layers else _Layer(0, 0, node, 0)
        series, number = (last.series + 1, 0) if full else (last.series, last.number + 1)
        layer = _Layer(series, number, node, _label(data))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = folder / "draft"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / layer.file)
        if full:
            for old in _layers(folder):
                if old.series < series:
                    (folder / old.file).unlink(missing_ok=True)

    def seal(self, lease: str, place: int, node: str) -> None:
        """Keep no more copies from a machine: from now on its home is being removed there."""
        folder = self._place(lease, place)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / f"sealed.{node}").touch(mode=0o600)

    def sealed(self, lease: str, place: int, node: str) -> bool:
        """Whether the last copy from a machine was made."""
        return (self._place(lease, place) / f"sealed.{node}").exists()

    def layers(self, lease: str, place: int) -> list[bytes]:
        """Return what to unpack, in order; nothing when there is no copy."""
        folder, layers = self._current(lease, place)
        return [(folder / layer.file).read_bytes() for layer in layers]

    def copied_at(self, lease: str, place: int) -> float | None:
        """Return when the last copy was kept, in this computer's clock; None when there is none."""
        folder, layers = self._current(lease, place)
        return (folder / layers[-1].file).stat().st_mtime if layers else None

    def set_aside(self, lease: str, place: int) -> None:
        """Keep a copy that could not be restored out of the way of those that follow."""
        folder = self._place(lease, place)
        with contextlib.suppress(FileNotFoundError):
            folder.replace(folder.with_name(f"{folder.name}-{os.urandom(4).hex()}-unrestored"))

    def forget(self, lease: str) -> None:
        """Remove every copy of a lease."""
        shutil.rmtree(self._folder / lease, ignore_errors=True)

    def leases(self) -> list[str]:
        """List the leases there are copies of."""
        if not self._folder.exists():
            return []
        return sorted(path.name for path in self._folder.iterdir() if path.is_dir())

    @contextlib.contextmanager
    def alone(self, lease: str, place: int) -> Iterator[bool]:
        """Give True to one at a time: two who copy the same home do the work twice."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"{lease}.{place}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
            # Whoever opened it in between holds a file without a name: at worst, work done twice.
            path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    def _place(self, lease: str, place: int) -> Path:
        return self._folder / lease / str(place)

    def _current(self, lease: str, place: int) -> tuple[Path, list[_Layer]]:
        folder = self._place(lease, place)
        layers = _layers(folder)
        last = layers[-1].series if layers else 0
        return folder, [layer for layer in layers if layer.series == last]


def _layers(folder: Path) -> list[_Layer]:
    if not folder.exists():
        return []
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        series, number, node, at = path.name.removesuffix(SUFFIX).split(".")
        found.append(_Layer(int(series), int(number), node, int(at)))
    return sorted(found)


def _label(data: bytes) -> int:
    """Read when a copy was begun; RejectedError when it is none.

    Only its beginning is unpacked: a node could have packed it so that it fills the memory.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            begin = packed.read(tarfile.BLOCKSIZE + _BEGIN)
        first = tarfile.TarInfo.frombuf(begin[: tarfile.BLOCKSIZE], "utf-8", "strict")
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as exc:
        raise RejectedError(f"a copy of a home is damaged: {exc}") from exc
    said = _AT.match(begin[tarfile.BLOCKSIZE :])
    if first.name != LABEL or not first.isreg() or said is None:
        raise RejectedError("a copy of a home does not say when it was made")
    return int(said[1])
