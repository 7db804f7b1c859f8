"""What all connections of one gateway share.  Used in one event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import asyncssh

from essaim.gateway.attempts import Attempts
from essaim.gateway.routes import Route, Routes
from essaim.gateway.tunnels import Tunnels
from essaim.model.errors import TransientError

log = logging.getLogger(__name__)

#: A user of this kind is the agent of a node.
NODE = "node-"
#: Connections one lease may have at once.
SHARE = 100
#: Seconds to wait for a node's address to answer, or its tunnel to come back.
REACH_WITHIN = 10.0

_T = TypeVar("_T")


class Visitor(Protocol):
    """A client's connection, as far as the gateway acts on it."""

    def cut(self, why: str) -> None:
        """End it within a second, telling the client why."""


@dataclass(kw_only=True)
class Hub:
    """What all connections of one gateway share."""

    routes: Routes
    executor: Executor  #: where the routes are asked
    dialers: Executor  #: where nodes are dialled: one that does not answer holds up no question
    key: asyncssh.SSHKey  #: what logs in to nodes
    reach: Callable[[Route], socket.socket]
    tunnels: Tunnels
    attempts: Attempts
    banner: str
    max_sessions: int
    check_every: float
    patience: float  #: seconds a client waits for a machine to hold the lease
    visitors: dict[str, set[Visitor]] = field(default_factory=dict)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    connections: set[asyncssh.SSHServerConnection] = field(default_factory=set)

    async def ask(self, question: Callable[..., _T], *about: Any) -> _T:
        """Ask the control plane in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.executor, question, *about)

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Let something run that `stop` waits for; its failure is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.error("gateway: %s", exc, exc_info=exc)

    async def keys_of(self, name: str) -> frozenset[bytes]:
        """Give the keys somebody of this name may show: none when nobody has it."""
        if name.startswith(NODE):
            line = await self.ask(self.routes.node_key, name.removeprefix(NODE))
            lines: tuple[str, ...] = (line,) if line else ()
        else:
            route = await self.ask(self.routes.lease, name)
            lines = route.keys if route and route.expires_at > time.time() else ()
        # A key is read for unknown names as well, so that they take as long as known ones.
        found = public_data(lines or (self.key.export_public_key().decode(),))
        return found if lines else frozenset()

    async def way_to(self, route: Route) -> socket.socket:
        """Give a connection to the machine that holds a lease."""
        if route.tunnel:
            return await self.tunnels.open(route.node, within=REACH_WITHIN)
        work = asyncio.get_running_loop().run_in_executor(self.dialers, self.reach, route)
        try:
            async with asyncio.timeout(REACH_WITHIN + 1):
                return await asyncio.shield(work)
        except (TimeoutError, asyncio.CancelledError) as exc:
            work.add_done_callback(_close_late)
            if isinstance(exc, asyncio.CancelledError):
                raise
            raise TransientError(f"{route.node}: no answer in {REACH_WITHIN:g} s") from exc
        except OSError as exc:
            raise TransientError(f"{route.node}: {exc.strerror or exc}") from exc

    async def all_closed(self) -> None:
        """Return when no connection is left."""
        await asyncio.gather(*(one.wait_closed() for one in list(self.connections)))

    def close(self) -> None:
        """Let go of the threads."""
        for executor in (self.executor, self.dialers):
            executor.shutdown(wait=False, cancel_futures=True)

    def everybody(self) -> Iterator[Visitor]:
        """Give every client that is connected."""
        return iter([one for some in self.visitors.values() for one in some])

    def add(self, account: str, visitor: Visitor) -> bool:
        """Count a client in; False when there are too many."""
        mine = self.visitors.setdefault(account, set())
        full = sum(map(len, self.visitors.values())) >= self.max_sessions or len(mine) >= SHARE
        mine.add(visitor)
        return not full

    def remove(self, account: str, visitor: Visitor) -> None:
        """Count a client out."""
        some = self.visitors.get(account, set())
        some.discard(visitor)
        if not some:
            self.visitors.pop(account, None)


def public_data(lines: Iterable[str]) -> frozenset[bytes]:
    """Read public keys; what is no key lets nobody in."""
    found = set()
    for line in lines:
        try:
            found.add(asyncssh.import_public_key(line).public_data)
        except asyncssh.KeyImportError:
            log.warning("gateway: a public key cannot be read and is left out")
    return frozenset(found)


def _close_late(work: asyncio.Future[socket.socket]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().close()
