"""Two ends of a stream tied together, so that a slow reader slows down the writer.

An end is driven by a channel of asyncssh or a transport of asyncio: both call the same methods.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import Any

import asyncssh
from typing_extensions import override

#: Bytes that may be on their way to us on one channel; what a paused reader holds up is never more.
WINDOW = 512 * 1024


Connection = asyncssh.SSHServerConnection | asyncssh.SSHClientConnection


class Line:
    """A connection that several ends share: when it is congested, all of them are slow.

    A channel's window does not say so.  Some clients open one of two gigabytes and rely on TCP.
    """

    def __init__(self, connection: Connection) -> None:
        self._ends: set[End] = set()
        self._full = False
        self._empty = asyncio.Event()
        self._empty.set()
        # What asyncio tells the connection, which does nothing with it.
        connection.pause_writing = functools.partial(self._tell, full=True)  # type: ignore[method-assign]  # nothing else hears of it
        connection.resume_writing = functools.partial(self._tell, full=False)  # type: ignore[method-assign]  # likewise

    def add(self, end: End) -> None:
        """Tell this end as well from now on."""
        self._ends.add(end)
        self._empty.clear()
        if self._full:
            end.line_changed(full=True)

    def remove(self, end: End) -> None:
        """Tell it no more."""
        self._ends.discard(end)
        if not self._ends:
            self._empty.set()

    async def emptied(self) -> None:
        """Return when no end is left."""
        await self._empty.wait()

    def _tell(self, *, full: bool) -> None:
        self._full = full
        for end in list(self._ends):
            end.line_changed(full=full)


class End:
    """One end of a relay.  What arrives before the other end is there is held back."""

    def __init__(
        self, line: Line | None = None, count: Callable[[int], None] = lambda _size: None
    ) -> None:
        self._line = line
        self.wire: Any = None  #: the channel or transport, once it is open
        self.other: End | None = None
        self._count = count
        self._held: list[tuple[bytes, int | None]] = []
        self.ended = False  #: the far side said that nothing more comes
        self.lost = False  #: what is below is gone
        self._full = False  #: too much is kept in the channel
        self._line_full = False  #: too much is kept in the connection below

    def tie(self, other: End) -> None:
        """Tie two ends together and pass on what was held back."""
        self.other, other.other = other, self
        self._pass_held()
        other._pass_held()

    def _pass_held(self) -> None:
        held, self._held = self._held, []
        for data, datatype in held:
            self._pass(data, datatype)
        if self.ended:
            self._pass_eof()
        if self.lost:
            self._close_other()
        elif self.other is not None:
            self.other._slow_down()  # noqa: SLF001 - both are ends

    def connection_made(self, wire: Any) -> None:
        """Below is ready."""
        self.wire = wire
        if self._line is not None:
            self._line.add(self)

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        """Something arrived."""
        self._count(len(data))
        if self.other is None:
            self._held.append((data, datatype))
            self.wire.pause_reading()
        else:
            self._pass(data, datatype)

    def eof_received(self) -> bool:
        """Nothing more arrives; our direction stays open."""
        self.ended = True
        if self.other is not None:
            self._pass_eof()
        return True

    def connection_lost(self, _exc: Exception | None) -> None:
        """Below is gone."""
        self.lost = True
        if self._line is not None:
            self._line.remove(self)
        if self.other is not None:
            self._close_other()

    def pause_writing(self) -> None:
        """Too much is kept below: let the other side wait."""
        self._full = True
        self._slow_down()

    def resume_writing(self) -> None:
        """Little is kept below."""
        self._full = False
        self._slow_down()

    def line_changed(self, *, full: bool) -> None:
        """The connection below is congested, or no longer."""
        self._line_full = full
        self._slow_down()

    @property
    def slow(self) -> bool:
        """Nothing more should be written for now."""
        return self._full or self._line_full

    def _slow_down(self) -> None:
        if self.other is None or self.other.lost:
            return
        if self.slow:
            self.other.wire.pause_reading()
        else:
            self.other.wire.resume_reading()

    def _pass(self, data: bytes, datatype: int | None) -> None:
        if self.other is None:
            return
        with contextlib.suppress(OSError):  # it closes: nobody wants this any more
            if datatype is None:
                self.other.wire.write(data)
            else:
                self.other.wire.write(data, datatype)

    def _pass_eof(self) -> None:
        if self.other is not None and not self.other.lost:
            with contextlib.suppress(OSError):
                self.other.wire.write_eof()

    def _close_other(self) -> None:
        if self.other is not None and not self.other.lost:
            self.other.wire.close()


class TcpEnd(End, asyncssh.SSHTCPSession[bytes]):
    """An end on a forwarded TCP connection."""


class ForwardEnd(TcpEnd):
    """A client's end of a forwarded TCP connection, tied to the machine's when it is open."""

    def __init__(
        self, line: Line, count: Callable[[int], None], far: End, left: Callable[[], None]
    ) -> None:
        super().__init__(line, count)
        self._far = far
        self._left = left

    @override
    def connection_made(self, wire: Any) -> None:
        super().connection_made(wire)
        self.tie(self._far)

    @override
    def connection_lost(self, _exc: Exception | None) -> None:
        super().connection_lost(_exc)
        self._left()


class SocketEnd(End, asyncio.Protocol):
    """An end on a socket."""
