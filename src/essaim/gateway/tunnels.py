"""Ways to nodes that cannot be dialled: each agent keeps a connection with one remote forward."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncssh
from typing_extensions import override

from essaim.gateway.relay import WINDOW, Line, SocketEnd, TcpEnd
from essaim.model.errors import TransientError

_T = TypeVar("_T")

#: Seconds a node has to answer through its tunnel.
OPEN_WITHIN = 10.0
#: Tunnels kept for one node: the newest, and one that may still carry sessions.
KEPT = 2


class Tunnel(asyncssh.SSHListener):
    """The remote forward of one agent's connection.  Nothing listens here: we open channels."""

    def __init__(
        self, tunnels: Tunnels, node: str, connection: asyncssh.SSHServerConnection, at: _At
    ) -> None:
        super().__init__()
        self._tunnels = tunnels
        self.node = node
        self.connection = connection
        self._line = Line(connection)
        self._host, asked = at
        self._port = asked or 22  # what is answered when the agent leaves the choice to us

    @override
    def get_port(self) -> int:
        return self._port

    @override
    def close(self) -> None:
        self._tunnels.forget(self)

    async def channel(self) -> TcpEnd:
        """Give an open end that leads to the node."""
        far = TcpEnd(self._line)
        async with asyncio.timeout(OPEN_WITHIN):
            await self.connection.create_connection(
                lambda: far, self._host, self._port, "gateway", 0, encoding=None, window=WINDOW
            )
        return far

    async def emptied(self) -> None:
        """Return when nothing goes through it."""
        await self._line.emptied()

    async def open(self) -> socket.socket:
        """Give a socket that leads to the node."""
        far = await self.channel()
        ours, theirs = socket.socketpair()
        try:
            ours.settimeout(0)
            loop = asyncio.get_running_loop()
            _, near = await loop.create_unix_connection(SocketEnd, sock=ours)
        except BaseException:
            far.wire.close()
            ours.close()
            theirs.close()
            raise
        near.tie(far)
        return theirs


_At = tuple[str, int]


class Tunnels:
    """The tunnels that are open now; the newest of a node is the way to it.

    `changed` is called with a node that has a new tunnel here, or none any more.
    """

    def __init__(self) -> None:
        self.changed: Callable[[str], None] = lambda _node: None
        self._tunnels: dict[str, list[Tunnel]] = {}
        self._arrived = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, tunnel: Tunnel) -> None:
        """Make this the way to its node."""
        mine = self._tunnels.setdefault(tunnel.node, [])
        mine.append(tunnel)
        for old in mine[:-KEPT]:
            old.connection.close()
        self.changed(tunnel.node)
        task = asyncio.get_running_loop().create_task(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self) -> None:
        async with self._arrived:
            self._arrived.notify_all()

    def forget(self, tunnel: Tunnel) -> None:
        """Its connection has ended, or the agent took the forward back."""
        mine = self._tunnels.get(tunnel.node, [])
        with contextlib.suppress(ValueError):
            mine.remove(tunnel)
        if not mine and self._tunnels.pop(tunnel.node, None) is not None:
            self.changed(tunnel.node)

    def drop(self, node: str) -> None:
        """Close every tunnel of a node, because it is no longer one of ours."""
        for tunnel in list(self._tunnels.get(node, [])):
            tunnel.connection.close()

    def nodes(self) -> list[str]:
        """Name the nodes that have a tunnel."""
        return sorted(self._tunnels)

    def has(self, node: str) -> bool:
        """Say whether a node has a tunnel."""
        return node in self._tunnels

    async def part(self) -> None:
        """Close each tunnel once nothing goes through it: its agent goes to another gateway."""
        await asyncio.gather(
            *(self._part(each) for some in list(self._tunnels.values()) for each in some)
        )

    @staticmethod
    async def _part(tunnel: Tunnel) -> None:
        await tunnel.emptied()
        tunnel.connection.close()

    async def await_one(self, node: str, *, within: float) -> bool:
        """Say whether a node has a tunnel here, waiting for its agent to come back if need be."""
        if node in self._tunnels or not within:
            return node in self._tunnels
        try:
            async with asyncio.timeout(within), self._arrived:
                await self._arrived.wait_for(lambda: node in self._tunnels)
        except TimeoutError:
            return False
        return True

    async def open(self, node: str, *, within: float) -> socket.socket:
        """Give a socket that leads to a node, waiting for its agent to come back if need be."""
        return await self._through(node, Tunnel.open, within=within)

    async def channel(self, node: str, *, within: float) -> TcpEnd:
        """Give an open end that leads to a node, waiting likewise."""
        return await self._through(node, Tunnel.channel, within=within)

    async def _through(
        self, node: str, make: Callable[[Tunnel], Awaitable[_T]], *, within: float
    ) -> _T:
        if not await self.await_one(node, within=within):
            raise TransientError(
                f"{node}: its agent has had no tunnel to the gateway for {within:g} s",
                hint="see whether the agent runs on that machine and can reach the gateway",
            )
        try:
            return await make(self._tunnels[node][-1])
        except TimeoutError as exc:
            raise TransientError(
                f"{node}: no answer through its tunnel in {OPEN_WITHIN:g} s"
            ) from exc
        except (asyncssh.Error, OSError) as exc:
            raise TransientError(f"{node}: its tunnel leads nowhere: {exc}") from exc
