"""What commands on machines read on their standard input, while it comes."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import BinaryIO

#: Bytes read at once.
CHUNK = 64 * 1024


class Input:
    """A file descriptor of this process, read by one command or by several.

    With several, each gets all of it, also who begins late: then what was read is kept in a file.
    Nothing is read before a command runs that could take it.  Used in one event loop.
    """

    def __init__(self, descriptor: int, *, readers: int = 1) -> None:
        self._descriptor = descriptor
        kind = os.fstat(descriptor).st_mode
        self._slow = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(descriptor)
        self._kept: BinaryIO | None = None
        if readers > 1:
            self._kept = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._length = 0
        self._ended = False
        self._turn = asyncio.Lock()

    async def read(self, offset: int) -> bytes:
        """Give what follows after so many bytes, waiting for it; nothing at the end."""
        if self._kept is None:
            return await self._next()
        while offset >= self._length and not self._ended:
            async with self._turn:
                if offset >= self._length and not self._ended:
                    data = await self._next()
                    os.pwrite(self._kept.fileno(), data, self._length)
                    self._length += len(data)
                    self._ended = not data
        return os.pread(self._kept.fileno(), CHUNK, offset) if offset < self._length else b""

    async def _next(self) -> bytes:
        if self._slow:  # others always have something, and cannot be waited for
            await self._readable()
        return os.read(self._descriptor, CHUNK)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._descriptor)

    def close(self) -> None:
        """Remove what was kept."""
        if self._kept is not None:
            self._kept.close()
