"""The files of a machine, over SFTP and the OpenSSH client.

OpenSSH makes the connection, because it can use every key its user has: of an agent, with a
passphrase, of a security token.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import struct
from collections import deque
from typing import TYPE_CHECKING, Self

from essaim.model.errors import EssaimError
from essaim.remote import sftp_protocol as protocol
from essaim.remote.files import FileInfo, failure
from essaim.remote.sftp_protocol import Connection, StatusError, pack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from essaim.remote.files import Writer

#: Bytes of one request: what every server takes.  And requests under way at once.
BLOCK, WINDOW = 32 * 1024, 64

_OPEN, _CLOSE, _READ, _WRITE, _LSTAT = 3, 4, 5, 6, 7
_SETSTAT, _OPENDIR, _READDIR, _REMOVE, _MKDIR = 9, 11, 12, 13, 14
_REALPATH, _STAT, _RENAME, _READLINK, _SYMLINK = 16, 17, 18, 19, 20
_FOR_READING, _FOR_WRITING, _CREATE, _EXCLUSIVE = 1, 2, 8, 32


class SftpFiles:
    """The files of one machine.  Used by one thread; `close` ends the connection.

    `command` is the ssh command that opens a shell there, without a remote command: options, then
    the destination.  `name` is what messages call the machine.
    """

    def __init__(self, command: Sequence[str], *, name: str) -> None:
        self.name = name
        self._connection = Connection(command, name=name)
        self._owner: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    # Looking

    def stat(self, path: str) -> FileInfo | None:
        """Look at an entry, following links."""
        return self._look(_STAT, path)

    def lstat(self, path: str) -> FileInfo | None:
        """Look at an entry itself."""
        return self._look(_LSTAT, path)

    def _look(self, kind: int, path: str) -> FileInfo | None:
        try:
            return self._connection.ask(kind, pack(path), expect=protocol.ATTRS).info()
        except StatusError as error:
            if error.code == protocol.NO_SUCH_FILE:
                return None
            raise self._explain(error, path) from error

    def entries(self, path: str) -> list[tuple[str, FileInfo]]:
        """List a directory."""
        with self._explained(path):
            handle = self._connection.ask(_OPENDIR, pack(path), expect=protocol.HANDLE).text()
            found: list[tuple[str, FileInfo]] = []
            try:
                while page := self._page(handle):
                    found += page
            finally:
                self._connection.ask(_CLOSE, pack(handle), expect=protocol.STATUS)
        return [(name, info) for name, info in found if name not in (".", "..")]

    def _page(self, handle: bytes) -> list[tuple[str, FileInfo]]:
        try:
            answer = self._connection.ask(_READDIR, pack(handle), expect=protocol.NAME)
        except StatusError as error:
            if error.code == protocol.EOF:
                return []
            raise
        found = []
        for _ in range(answer.number()):
            name = os.fsdecode(answer.text())
            answer.text()  # the line `ls -l` would show
            found.append((name, answer.info()))
        return found

    def read_link(self, path: str) -> str:
        """Say where a link leads."""
        return self._named(_READLINK, path)

    def real_path(self, path: str) -> str:
        """Give the absolute path, with all links followed."""
        return self._named(_REALPATH, path)

    def _named(self, kind: int, path: str) -> str:
        with self._explained(path):
            answer = self._connection.ask(kind, pack(path), expect=protocol.NAME)
            answer.number()
            return os.fsdecode(answer.text())

    def owner(self) -> int:
        """Give the user id that files made here belong to: whose the home is."""
        if self._owner is None:
            home = self.stat(".")
            self._owner = home.uid if home else -1
        return self._owner

    # Changing

    def move(self, path: str, to: str) -> None:
        """Rename, replacing a file that has the name."""
        both = pack(path) + pack(to)
        with self._explained(to):
            if b"posix-rename@openssh.com" in self._connection.extensions:
                body = pack("posix-rename@openssh.com") + both
                self._connection.ask(protocol.EXTENDED, body, expect=protocol.STATUS)
                return
            with contextlib.suppress(StatusError):
                self._connection.ask(_REMOVE, pack(to), expect=protocol.STATUS)
            self._connection.ask(_RENAME, both, expect=protocol.STATUS)

    def remove(self, path: str) -> None:
        """Remove a file or link."""
        with self._explained(path):
            self._connection.ask(_REMOVE, pack(path), expect=protocol.STATUS)

    def make_directory(self, path: str) -> None:
        """Make a directory that only its owner may enter for now."""
        with self._explained(path):
            mode = struct.pack(">II", protocol.HAS_MODE, 0o700)
            self._connection.ask(_MKDIR, pack(path) + mode, expect=protocol.STATUS)

    def set_attributes(self, path: str, info: FileInfo) -> None:
        """Give an entry the permissions and the time of `info`."""
        seconds = min(max(0, int(info.modified)), 2**32 - 1)
        flags = protocol.HAS_MODE | protocol.HAS_TIMES
        body = struct.pack(">IIII", flags, info.permissions, seconds, seconds)
        with self._explained(path):
            self._connection.ask(_SETSTAT, pack(path) + body, expect=protocol.STATUS)

    def make_link(self, path: str, to: str) -> None:
        """Make a symbolic link that leads to `to`."""
        with self._explained(path):
            # OpenSSH, and whoever follows it, takes the two in this order.
            self._connection.ask(_SYMLINK, pack(to) + pack(path), expect=protocol.STATUS)

    # Content

    def read(self, path: str, offset: int) -> Iterator[bytes]:
        """Read a file from this offset to its end."""
        with self._open(path, _FOR_READING) as handle:
            pending: deque[tuple[int, int]] = deque()  #: request, its offset
            asked = offset
            try:
                while True:
                    while len(pending) < WINDOW:
                        pending.append((self._send_read(handle, asked, BLOCK), asked))
                        asked += BLOCK
                    data = self._whole_block(handle, *pending.popleft())
                    if not data:
                        return
                    yield data
            finally:
                self._connection.unwanted.update(number for number, _ in pending)

    def _whole_block(self, handle: bytes, number: int, offset: int) -> bytes:
        """Give a block: less only at the end of the file, whatever the server likes to give."""
        data = more = self._block(number)
        while more and len(data) < BLOCK:
            at = offset + len(data)
            more = self._block(self._send_read(handle, at, BLOCK - len(data)))
            data += more
        return data

    def _send_read(self, handle: bytes, offset: int, size: int) -> int:
        return self._connection.send(_READ, pack(handle) + struct.pack(">QI", offset, size))

    def _block(self, number: int) -> bytes:
        try:
            return self._connection.answer(number, expect=protocol.DATA).text()
        except StatusError as error:
            if error.code == protocol.EOF:
                return b""
            raise

    @contextlib.contextmanager
    def write(self, path: str, offset: int) -> Iterator[Writer]:
        """Write a file: a new one at offset 0, otherwise one that is there."""
        flags = _FOR_WRITING | (0 if offset else _CREATE | _EXCLUSIVE)
        with self._open(path, flags) as handle:
            writer = _SftpWriter(self, handle, offset)
            yield writer
            writer.settle()

    @contextlib.contextmanager
    def _open(self, path: str, flags: int) -> Iterator[bytes]:
        with self._explained(path):
            body = pack(path) + struct.pack(">III", flags, protocol.HAS_MODE, 0o600)
            handle = self._connection.ask(_OPEN, body, expect=protocol.HANDLE).text()
            try:
                yield handle
            except BaseException:
                # Not waited for: whoever was interrupted does not want to, and ssh may be gone.
                with contextlib.suppress(EssaimError):
                    self._connection.unwanted.add(self._connection.send(_CLOSE, pack(handle)))
                raise
            self._connection.ask(_CLOSE, pack(handle), expect=protocol.STATUS)

    def send_block(self, handle: bytes, offset: int, data: bytes) -> int:
        """Begin to write a block; gives the request to wait for."""
        return self._connection.send(_WRITE, pack(handle) + struct.pack(">Q", offset) + pack(data))

    def await_block(self, number: int) -> None:
        """Wait until a block is written."""
        self._connection.answer(number)

    @contextlib.contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        try:
            yield
        except StatusError as error:
            raise self._explain(error, path) from error

    def _explain(self, error: StatusError, path: str) -> OSError:
        if error.code == protocol.NO_SUCH_FILE:
            return failure(self._missing(path), path)
        if error.code == protocol.DENIED:
            return failure(errno.EACCES, path)
        if error.code == protocol.UNSUPPORTED:
            return failure(errno.EOPNOTSUPP, path)
        if error.code == protocol.FAILURE and self._full(path):
            return failure(errno.ENOSPC, path)
        return OSError(errno.EIO, str(error) or f"SFTP error {error.code}", path)

    def _missing(self, path: str) -> int:
        """Tell a missing file from one below something that is no directory."""
        parent = posixpath.dirname(path.rstrip("/"))
        while parent and parent != "/":
            with contextlib.suppress(StatusError):
                found = self._connection.ask(_STAT, pack(parent), expect=protocol.ATTRS).info()
                return errno.ENOENT if found.is_directory else errno.ENOTDIR
            parent = posixpath.dirname(parent)
        return errno.ENOENT

    def _full(self, path: str) -> bool:
        """Whether the file system has no room: version 3 has no code for that."""
        if b"statvfs@openssh.com" not in self._connection.extensions:
            return False
        where = posixpath.dirname(path) or "."
        try:
            body = pack("statvfs@openssh.com") + pack(where)
            answer = self._connection.ask(protocol.EXTENDED, body, expect=protocol.EXTENDED_REPLY)
        except StatusError:
            return False
        block, _fragment, _blocks, _free, available = answer.longs(5)
        return available * block < BLOCK


class _SftpWriter:
    """Writes blocks without waiting for each."""

    def __init__(self, files: SftpFiles, handle: bytes, offset: int) -> None:
        self._files = files
        self._handle = handle
        self._offset = offset
        self._pending: deque[int] = deque()

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), BLOCK):
            block = data[at : at + BLOCK]
            while len(self._pending) >= WINDOW:
                self._files.await_block(self._pending.popleft())
            self._pending.append(self._files.send_block(self._handle, self._offset, block))
            self._offset += len(block)

    def settle(self) -> None:
        """Wait for all blocks; the first that failed is the error."""
        while self._pending:
            self._files.await_block(self._pending.popleft())
