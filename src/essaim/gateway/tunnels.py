"""Ways to nodes that cannot be dialled: each agent keeps a connection with one remote forward."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import asyncssh
from typing_extensions import override

from essaim.gateway.relay import WINDOW, Line, SocketEnd, TcpEnd
from essaim.model.errors import TransientError

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

    async def open(self) -> socket.socket:
        """Give a socket that leads to the node."""
        far = TcpEnd(self._line)
        async with asyncio.timeout(OPEN_WITHIN):
            await self.connection.create_connection(
                lambda: far, self._host, self._port, "gateway", 0, encoding=None, window=WINDOW
            )
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
    """The tunnels that are open now; the newest of a node is the way to it."""

    def __init__(self) -> None:
        self._tunnels: dict[str, list[Tunnel]] = {}
        self._arrived = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, tunnel: Tunnel) -> None:
        """Make this the way to its node."""
        mine = self._tunnels.setdefault(tunnel.node, [])
        mine.append(tunnel)
        for old in mine[:-KEPT]:
            old.connection.close()
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
        if not mine:
            self._tunnels.pop(tunnel.node, None)

    def drop(self, node: str) -> None:
        """Close every tunnel of a node, because it is no longer one of ours."""
        for tunnel in list(self._tunnels.get(node, [])):
            tunnel.connection.close()

    def nodes(self) -> list[str]:
        """Name the nodes that have a tunnel."""
        return sorted(self._tunnels)

    async def open(self, node: str, *, within: float) -> socket.socket:
        """Give a socket that leads to a node, waiting for its agent to come back if need be."""
        try:
            async with asyncio.timeout(within), self._arrived:
                await self._arrived.wait_for(lambda: node in self._tunnels)
        except TimeoutError as exc:
            raise TransientError(
                f"{node}: its agent has had no tunnel to the gateway for {within:g} s",
                hint="see whether the agent runs on that machine and can reach the gateway",
            ) from exc
        try:
            return await self._tunnels[node][-1].open()
        except TimeoutError as exc:
            raise TransientError(
                f"{node}: no answer through its tunnel in {OPEN_WITHIN:g} s"
            ) from exc
        except (asyncssh.Error, OSError) as exc:
            raise TransientError(f"{node}: its tunnel leads nowhere: {exc}") from exc
