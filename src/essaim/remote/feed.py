"""Output on its way from the event loop's thread to the thread that asked for it."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

#: Chunks of output a slow reader may be behind before the machine is made to wait.
_FULL = 256


class Source(Protocol):
    """Where output comes from, and which can be told to wait."""

    def pause_reading(self) -> None:
        """Send nothing more for now."""

    def resume_reading(self) -> None:
        """Go on sending."""


class Feed:
    """A queue of output whose slow reader slows down the far command, not our memory."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._chunks: queue.SimpleQueue[tuple[bytes, bool] | None] = queue.SimpleQueue()
        self._waiting: Source | None = None

    @property
    def waiting(self) -> bool:
        """The source was told to wait."""
        return self._waiting is not None

    def put(self, data: bytes, source: Source, *, stdout: bool) -> None:
        """Add output; called in the loop's thread."""
        self._chunks.put((data, stdout))
        if self._waiting is None and self._chunks.qsize() > _FULL:
            self._waiting = source
            source.pause_reading()

    def end(self) -> None:
        """Let the reader finish."""
        self._chunks.put(None)

    def __iter__(self) -> Iterator[tuple[bytes, bool]]:
        """Give what comes, and whether it is of stdout."""
        while (chunk := self._chunks.get()) is not None:
            yield chunk
            if self._waiting is not None and self._chunks.empty():
                self._loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        source, self._waiting = self._waiting, None
        if source is not None:
            source.resume_reading()
