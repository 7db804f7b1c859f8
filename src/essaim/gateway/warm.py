"""Connections to machines that outlive a visit by some seconds, for the next one of the lease.

People copy a file and log in, tools log in for every command: letting an account in costs its
machine more than anything that happens here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncssh

    from essaim.gateway.routes import Route

#: Connections kept at most, of all leases.
KEPT = 200

_Way = tuple[str, str, str, int, str]
_Kept = tuple["asyncssh.SSHClientConnection", asyncio.TimerHandle]


class Warm:
    """At most one unused connection for each way to a machine, for `seconds`.  0 keeps none."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kept: dict[_Way, _Kept] = {}

    def take(self, route: Route) -> asyncssh.SSHClientConnection | None:
        """Give the connection that leads where the route does now, if there is one."""
        found = self._kept.pop(_way(route), None)
        if found is None:
            return None
        connection, timer = found
        timer.cancel()
        return None if connection.is_closed() else connection

    def keep(self, route: Route, connection: asyncssh.SSHClientConnection) -> bool:
        """Keep a connection on which nothing is open; False when it is to be closed."""
        way = _way(route)
        if not self._seconds or way in self._kept or len(self._kept) >= KEPT:
            return False
        loop = asyncio.get_running_loop()
        self._kept[way] = (connection, loop.call_later(self._seconds, self._close, way))
        return True

    def drop(self, account: str) -> None:
        """Close what a lease has here, because it has ended or moved."""
        for way in [each for each in self._kept if each[0] == account]:
            self._close(way)

    async def close(self) -> None:
        """Close all."""
        connections = [connection for connection, _ in self._kept.values()]
        for way in list(self._kept):
            self._close(way)
        await asyncio.gather(*(each.wait_closed() for each in connections))

    def _close(self, way: _Way) -> None:
        connection, timer = self._kept.pop(way)
        timer.cancel()
        connection.close()


def _way(route: Route) -> _Way:
    return (route.account, route.node, route.address, route.port, route.host_key)
