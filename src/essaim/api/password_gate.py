"""Bounds the processors that checking passwords may take, and shares them among clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator

from essaim.api.limits import TooManyError

#: Passwords checked at once: a core is left for everybody else.
AT_ONCE = max(1, (os.cpu_count() or 1) - 1)
#: Clients that may wait; beyond it, the network with the most of them loses one.
WAITING = 200


class PasswordGate:
    """Lets a few check passwords at once, the networks of clients in turn.

    So whoever guesses from one network delays mostly themselves: another one's client waits for one
    check of theirs at most.  Nobody who waits holds a thread.
    """

    def __init__(self, at_once: int = AT_ONCE, waiting: int = WAITING) -> None:
        self._free = at_once
        self._most = waiting
        self._waiting = 0
        #: Those who wait by network; the network that is served next comes first.
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}

    @contextlib.asynccontextmanager
    async def turn(self, network: str) -> AsyncIterator[None]:
        """Wait for one's turn; TooManyError when too many of the same network wait."""
        if self._free > 0:
            self._free -= 1
        else:
            await self._wait(network)
        try:
            yield
        finally:
            self._next()

    async def _wait(self, network: str) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(network, deque()).append(mine)
        self._waiting += 1
        if self._waiting > self._most:
            self._drop()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled() and mine.exception() is None:
                self._next()  # it was given a turn and cannot use it
            raise

    def _drop(self) -> None:
        """Send away the last of the longest line."""
        longest = max(self._lines, key=lambda network: len(self._lines[network]))
        last = self._lines[longest].pop()
        self._left(longest)
        if not last.done():
            last.set_exception(TooManyError(1.0))

    def _next(self) -> None:
        """Hand a turn to the next network, which then stands last."""
        while self._lines:
            network = next(iter(self._lines))
            line = self._lines.pop(network)
            following = line.popleft()
            self._lines[network] = line
            self._left(network)
            if not following.done():
                following.set_result(None)
                return
        self._free += 1

    def _left(self, network: str) -> None:
        self._waiting -= 1
        if not self._lines[network]:
            del self._lines[network]
