"""What all connections of one gateway share.  Used in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import asyncssh

from essaim.gateway.attempts import Attempts, Seldom
from essaim.gateway.mates import Mates
from essaim.gateway.routes import NODE, Route, Routes, SessionStart, is_node, split
from essaim.gateway.tunnels import Tunnels
from essaim.gateway.warm import Warm
from essaim.model.client_networks import client_network
from essaim.model.errors import TransientError
from essaim.remote.private_keys import PrivateKeys
from essaim.store.tunnels import BEAT_EVERY

log = logging.getLogger(__name__)

#: Connections one lease may have at once.
SHARE = 100
#: Visits looked at again in a second, so that many of them do not keep the database busy.
LOOKS = 200
#: A tunnel is looked at again so many times less often than a visit.
TUNNELS_EVERY = 15
#: Seconds to wait for a node's address to answer, or its tunnel to come back.
REACH_WITHIN = 10.0

#: Seconds between looks for a tunnel that is nowhere: the first, and the longest.
FIRST_LOOK, LOOK_EVERY = 0.1, 1.0
#: Seconds between looks whether all visits are over.
LEAVE_EVERY = 0.2

_T = TypeVar("_T")
_Socket = TypeVar("_Socket", socket.socket, "socket.socket | None")


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
    keys: PrivateKeys  #: what logs in to nodes
    reach: Callable[[Route], socket.socket]
    tunnels: Tunnels
    warm: Warm
    attempts: Attempts
    banner: str
    max_sessions: int
    check_every: float
    patience: float  #: seconds a client waits for a machine to hold the lease
    mates: Mates | None = None  #: the other gateways; None for one that is alone
    visitors: dict[str, set[Visitor]] = field(default_factory=dict)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    connections: set[asyncssh.SSHServerConnection] = field(default_factory=set)
    unproved: set[object] = field(default_factory=set)  #: at the inner door
    relayed: set[object] = field(default_factory=set)  #: visits at other gateways that go by here
    telling: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Strangers at a lease are recorded, but not each of their guesses: of one network, and of all.
    near: Seldom = field(default_factory=lambda: Seldom(1, every=600.0))
    anywhere: Seldom = field(default_factory=lambda: Seldom(20, every=180.0))

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
        if is_node(name):
            line = await self.ask(self.routes.node_key, name.removeprefix(NODE))
            lines: tuple[str, ...] = (line,) if line else ()
        else:
            route = await self.ask(self.routes.lease, name)
            if route is None or route.expires_at <= time.time():
                # Let in, to be told why the name leads nowhere.
                refusal = await self.ask(self.routes.refusal, name)
                lines = refusal.keys if refusal else ()
            else:
                lines = route.keys
        # A key is read for unknown names as well, so that they take as long as known ones.
        found = public_data(lines or (self.keys.read()[0].export_public_key().decode(),))
        return found if lines else frozenset()

    def turned_away(self, name: str, client: str, key: str) -> None:
        """Let it be recorded that somebody showed no right key for a name, unless it was lately."""
        account, _ = split(name)
        if is_node(name) or not self.near.allows((account, client_network(client))):
            return
        if self.anywhere.allows(account):
            came = SessionStart(
                account=account,
                node="",
                client=client,
                key=key,
                started_at=time.time(),
                refused="no key of this lease was shown",
            )
            self.spawn(self.ask(self.routes.turned_away, came))

    async def way_to(self, route: Route) -> socket.socket:
        """Give a connection to the machine that holds a lease.

        A node that said that nothing can dial it is reached through its tunnel, any other one
        directly; when that fails, through its tunnel if it keeps one all the same.
        """
        if not route.tunnel:
            try:
                return await self._dial(route)
            except TransientError:
                if not self.tunnels.has(route.node):
                    raise
        if self.mates is None:
            return await self.tunnels.open(route.node, within=REACH_WITHIN)
        return await self._through(route.node, self.mates)

    async def _dial(self, route: Route) -> socket.socket:
        try:
            dial = functools.partial(self.reach, route) if route.dial is None else route.dial
            return await self._in_thread(route.node, dial)
        except OSError as exc:
            raise TransientError(f"{route.node}: {exc.strerror or exc}") from exc

    async def _in_thread(self, node: str, dial: Callable[..., _Socket], *about: Any) -> _Socket:
        work = asyncio.get_running_loop().run_in_executor(self.dialers, dial, *about)
        try:
            async with asyncio.timeout(REACH_WITHIN + 1):
                return await asyncio.shield(work)
        except (TimeoutError, asyncio.CancelledError) as exc:
            work.add_done_callback(_close_late)
            if isinstance(exc, asyncio.CancelledError):
                raise
            raise TransientError(f"{node}: no answer in {REACH_WITHIN:g} s") from exc

    async def _through(self, node: str, mates: Mates) -> socket.socket:
        """Give a connection through the tunnel of a node, here or at the gateway where it ends."""
        deadline, pause = time.monotonic() + REACH_WITHIN, FIRST_LOOK
        while True:
            try:
                if self.tunnels.has(node):
                    return await self.tunnels.open(node, within=0.0)
                made = await self._in_thread(node, mates.far, node)
                if made is not None:
                    return made
                why = TransientError(
                    f"{node}: its agent has had no tunnel to any gateway for {REACH_WITHIN:g} s",
                    hint="see whether the agent runs on that machine and can reach a gateway",
                )
            except TransientError as exc:  # it may be on its way to another gateway
                why = exc
            left = deadline - time.monotonic()
            if left <= 0:
                raise why
            await self.tunnels.await_one(node, within=min(pause, left))
            pause = min(2 * pause, LOOK_EVERY)

    def changed(self, node: str) -> None:
        """Let the others know that a node has a tunnel here, or none any more."""
        if self.mates is not None:
            self.spawn(self._tell(node, self.mates))

    async def _tell(self, node: str, mates: Mates) -> None:
        async with self.telling:  # one after the other: the last word is what is so
            tell = mates.came if self.tunnels.has(node) else mates.went
            try:
                await self.ask(tell, node)
            except Exception as exc:  # noqa: BLE001 - the next beat sets it right
                log.warning("gateway: the tunnel of %s could not be kept: %s", node, exc)

    async def beat(self, mates: Mates) -> None:
        """Let the others know that this gateway lives, for as long as it runs."""
        trouble = False
        while True:
            await asyncio.sleep(BEAT_EVERY)
            try:
                async with self.telling:
                    await self.ask(mates.beat, self.tunnels.nodes())
                trouble = False
            except Exception as exc:  # noqa: BLE001 - a database that is away comes back
                if not trouble:
                    log.warning("gateway: the others cannot be told that it lives: %s", exc)
                trouble = True

    async def all_left(self) -> None:
        """Return when nobody visits, here or through here."""
        while any(self.visitors.values()) or self.relayed:  # noqa: ASYNC110 - many change these
            await asyncio.sleep(LEAVE_EVERY)

    async def watch_tunnels(self) -> None:
        """Close the tunnels of nodes that are no longer ours, for as long as the gateway runs."""
        while True:
            await asyncio.sleep(TUNNELS_EVERY * self.check_every)
            for node in self.tunnels.nodes():
                with contextlib.suppress(Exception):  # no answer is no reason to close anything
                    if await self.ask(self.routes.node_key, node) is None:
                        self.tunnels.drop(node)

    def look_again(self) -> float:
        """Say after how many seconds a visit is looked at again."""
        return max(self.check_every, sum(map(len, self.visitors.values())) / LOOKS)

    async def all_closed(self) -> None:
        """Return when no connection is left."""
        await asyncio.gather(*(one.wait_closed() for one in list(self.connections)))

    async def all_done(self) -> None:
        """Return when nothing that was spawned runs any more."""
        while self.tasks:
            await asyncio.wait(list(self.tasks))

    def close(self) -> None:
        """Let go of what still runs, and of the threads."""
        for task in self.tasks:
            task.cancel()
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


def _close_late(work: asyncio.Future[Any]) -> None:
    if not work.cancelled() and work.exception() is None and work.result() is not None:
        work.result().close()
