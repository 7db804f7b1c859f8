"""Copy files and directories between computers; an interrupted copy goes on where it stopped.

A file is written under another name beside its own, and gets its name when it is whole.  That
other name holds a digest of the source's size and time, so that what is there is only ever
continued with the same source.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from essaim.remote.files import failure, not_a_file
from essaim.remote.sftp import BLOCK, WINDOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim.remote.files import FileInfo, FileSystem

PART = ".essaim-part"
#: A part's last bytes are written again: a machine that lost power may not have kept them.
AGAIN = BLOCK * WINDOW
#: Bytes of a name that still leave room for what a part's name has besides.
LONGEST_NAME = 200
DIGEST = 4  #: bytes
_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Location:
    """A path on a computer."""

    files: FileSystem
    path: str

    @override
    def __str__(self) -> str:
        return f"{self.files.name}:{self.path}" if self.files.name else self.path

    def child(self, name: str) -> Location:
        """The entry of this name in the directory."""
        return Location(self.files, posixpath.join(self.path, name))


class Reporter(Protocol):
    """Told what happens, for a person to see."""

    def begin(self, source: Location, size: int, done: int) -> None:
        """A file of this size begins; so many of its bytes were there already."""

    def advance(self, count: int) -> None:
        """So many bytes more were copied."""

    def failed(self, source: Location, target: Location, error: OSError) -> None:
        """One entry could not be copied."""


@dataclass(slots=True)
class Outcome:
    """How much was copied."""

    copied: int = 0  #: files, directories and links
    skipped: int = 0  #: files that were there already
    failed: int = 0
    bytes: int = 0  #: sent now; not what was there


@dataclass
class Copier:
    """Copies to one destination.

    With `update`, a file that is there with the same size and time (to the second) is skipped.
    Every OSError is reported and the rest goes on; a lost connection ends the copy with
    TransientError.
    """

    reporter: Reporter
    update: bool = False
    outcome: Outcome = field(default_factory=Outcome)

    def copy(self, sources: Sequence[Location], destination: Location) -> Outcome:
        """Copy as `cp -r` does: into a directory that is there, or under a new name."""
        found = destination.files.stat(destination.path or ".")
        into = found is not None and found.is_directory
        for source in sources:
            target = destination
            try:
                if not into and (len(sources) > 1 or destination.path.endswith("/")):
                    number = errno.ENOENT if found is None else errno.ENOTDIR
                    raise failure(number, destination.path)
                name = posixpath.basename(source.path.rstrip("/"))
                if into and name not in ("", ".", "..", "~"):
                    target = Location(destination.files, destination.path or ".").child(name)
                self._named(source, target)
            except OSError as error:
                self._fail(source, target, error)
        return self.outcome

    def _named(self, source: Location, target: Location) -> None:
        """Copy what a person named: links are followed on both sides."""
        info = source.files.stat(source.path)
        if info is None:
            raise failure(errno.ENOENT, source.path)
        there = target.files.lstat(target.path)
        if there is not None and there.is_link:
            target = Location(target.files, target.files.real_path(target.path))
            there = target.files.lstat(target.path)
        if info.is_directory and source.files.name == target.files.name:
            self._apart(source, target)
        self._entry(source, info, target, there)

    @staticmethod
    def _apart(source: Location, target: Location) -> None:
        """Refuse to copy a directory into itself."""
        outer = source.files.real_path(source.path)
        parent = posixpath.dirname(target.path.rstrip("/")) or "."
        inner = posixpath.join(target.files.real_path(parent), "")
        if inner.startswith(posixpath.join(outer, "")):
            raise OSError(errno.EINVAL, "a directory cannot be copied into itself", source.path)

    def _entry(
        self, source: Location, info: FileInfo, target: Location, there: FileInfo | None
    ) -> None:
        if info.is_directory:
            self._directory(source, info, target, there)
        elif info.is_file:
            self._file(source, info, target, there)
        elif info.is_link:
            self._link(source, target, there)
        else:
            raise not_a_file(source.path)

    def _directory(
        self, source: Location, info: FileInfo, target: Location, there: FileInfo | None
    ) -> None:
        if there is None:
            target.files.make_directory(target.path)
        elif not there.is_directory:
            # Also a link: what lies behind it was not named.
            raise failure(errno.ENOTDIR, target.path)
        known = dict(target.files.entries(target.path)) if there is not None else {}
        for name, child in sorted(dict(source.files.entries(source.path)).items()):
            try:
                if "/" in name or name in ("", ".", ".."):
                    raise not_a_file(name)
                self._entry(source.child(name), child, target.child(name), known.get(name))
            except OSError as error:
                self._fail(source.child(name), target.child(name), error)
        if there is None:
            target.files.set_attributes(target.path, info)
        self.outcome.copied += 1

    def _link(self, source: Location, target: Location, there: FileInfo | None) -> None:
        to = source.files.read_link(source.path)
        if there is not None:
            if there.is_directory:
                raise failure(errno.EISDIR, target.path)
            if there.is_link and target.files.read_link(target.path) == to:
                self.outcome.skipped += 1
                return
            target.files.remove(target.path)
        target.files.make_link(target.path, to)
        self.outcome.copied += 1

    def _file(
        self, source: Location, info: FileInfo, target: Location, there: FileInfo | None
    ) -> None:
        if there is not None:
            if there.is_directory:
                raise failure(errno.EISDIR, target.path)
            if not (there.is_file or there.is_link):
                raise not_a_file(target.path)
            if self.update and there.is_file and _same(info, there):
                self.outcome.skipped += 1
                return
        part = Location(target.files, part_path(target.path, info))
        self._content(source, info, part)
        target.files.set_attributes(part.path, info)
        target.files.move(part.path, target.path)
        self.outcome.copied += 1

    def _content(self, source: Location, info: FileInfo, part: Location) -> None:
        """Copy what is not in the part yet."""
        offset = self._begun(part, info.size)
        self.reporter.begin(source, info.size, offset)
        try:
            at = offset + self._pour(source, part, offset)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                part.files.remove(part.path)  # others need the room
            raise
        now = source.files.stat(source.path)
        if at != info.size or now is None or not _same(info, now):
            part.files.remove(part.path)
            raise OSError(errno.EAGAIN, "it changed while it was copied", source.path)

    def _pour(self, source: Location, part: Location, offset: int) -> int:
        count = 0
        with part.files.write(part.path, offset) as writer:
            for data in source.files.read(source.path, offset):
                writer.write(data)
                count += len(data)
                self.outcome.bytes += len(data)
                self.reporter.advance(len(data))
        return count

    @staticmethod
    def _begun(part: Location, size: int) -> int:
        """Say how much of a part can be kept; a stranger's is not touched."""
        found = part.files.lstat(part.path)
        if found is None:
            if size > AGAIN:
                _remove_outdated(part)
            return 0
        if not found.is_file or found.uid != part.files.owner():
            raise failure(errno.EEXIST, part.path)
        keep = max(0, min(found.size, size) - AGAIN)
        if not keep:
            part.files.remove(part.path)
        return keep

    def _fail(self, source: Location, target: Location, error: OSError) -> None:
        self.outcome.failed += 1
        self.reporter.failed(source, target, error)


def _same(one: FileInfo, other: FileInfo) -> bool:
    """Whether two files are the same as far as size and time tell, to the second as SFTP does."""
    return one.size == other.size and int(one.modified) == int(other.modified)


def _remove_outdated(part: Location) -> None:
    """Remove what an interrupted copy of an older source left."""
    folder, name = posixpath.split(part.path)
    start = name[: -len(PART) - 2 * DIGEST]
    outdated = re.compile(re.escape(start) + f"[0-9a-f]{{{2 * DIGEST}}}" + re.escape(PART))
    for other, info in part.files.entries(folder or "."):
        if outdated.fullmatch(other) and info.is_file and info.uid == part.files.owner():
            part.files.remove(posixpath.join(folder, other))


def part_path(path: str, info: FileInfo) -> str:
    """Where a file is kept until it is whole."""
    folder, name = posixpath.split(path)
    raw = name.encode(errors="surrogateescape")
    if len(raw) > LONGEST_NAME:
        name = hashlib.blake2b(raw, digest_size=8).hexdigest()
    version = f"{info.size} {info.modified}".encode()
    digest = hashlib.blake2b(version, digest_size=DIGEST).hexdigest()
    return posixpath.join(folder, f".{name}.{digest}{PART}")


def expand(pattern: Location) -> list[Location]:
    """Give what a pattern with `*`, `?` or `[…]` names; the pattern itself when there is nothing.

    What is there under exactly this name is meant, whatever characters it has.
    """
    if not _MAGIC.search(pattern.path) or pattern.files.lstat(pattern.path) is not None:
        return [pattern]
    absolute = pattern.path.startswith("/")
    found = ["/" if absolute else ""]
    for word in pattern.path.strip("/").split("/"):
        found = [path for folder in found for path in _matches(pattern.files, folder, word)]
    return [Location(pattern.files, path) for path in found] or [pattern]


def _matches(files: FileSystem, folder: str, word: str) -> list[str]:
    if not _MAGIC.search(word):
        path = posixpath.join(folder, word)
        return [path] if files.lstat(path) is not None else []
    try:
        names = [name for name, _ in files.entries(folder or ".")]
    except OSError:
        return []  # no directory, or one that may not be read
    shown = [name for name in names if not name.startswith(".") or word.startswith(".")]
    return sorted(posixpath.join(folder, each) for each in fnmatch.filter(shown, word))
