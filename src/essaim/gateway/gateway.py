"""The SSH gateway: `ssh LEASE@gateway` reaches the machine that holds the lease now."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from essaim.gateway.attempts import Attempts
from essaim.gateway.door import Door
from essaim.gateway.hub import REACH_WITHIN, Hub
from essaim.gateway.inner import InnerDoor
from essaim.gateway.mates import Mates
from essaim.gateway.relay import WINDOW
from essaim.gateway.routes import Route, Routes, SessionStart
from essaim.gateway.sentences import sentence
from essaim.gateway.tunnels import OPEN_WITHIN, Tunnels
from essaim.gateway.warm import Warm
from essaim.model.errors import SetupError, TransientError
from essaim.remote.link import KEX
from essaim.remote.private_keys import PrivateKeys

log = logging.getLogger(__name__)

__all__ = ["Gateway", "Route", "Routes", "SessionStart"]

#: Seconds to log in.
LOGIN_WITHIN = 30.0
#: Seconds a gateway has to stop, and each part of that: sessions are recorded then.
STOP_WITHIN, PART_WITHIN = 30.0, 5.0
#: Without ChaCha20, which OpenSSH's client would choose: here it moves a third less.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")

# Its info level prints whole command lines.
asyncssh.set_log_level("WARNING")


def reach(route: Route) -> socket.socket:
    """Connect to the address a node is known by."""
    return socket.create_connection((route.address, route.port), REACH_WITHIN)


@dataclass(frozen=True)
class _Running:
    """A gateway that listens."""

    loop: asyncio.AbstractEventLoop
    ended: asyncio.Event
    hurry: asyncio.Event
    hub: Hub
    port: int


class Gateway:
    """One listening address for all leases and all agents' tunnels, in a thread of its own.

    Its methods may be called in any thread.  `host_key` is made when it is not there; the keys of
    `login_keys`, read at each login, open the accounts of leases.  `check_every` is how often, in
    seconds, a lease in use is looked at again, so that what other processes decide is noticed too;
    `patience` is how long a client waits while no machine holds the lease, because it is being
    prepared or moved; `warm` is how long an unused connection to a machine is kept for the lease's
    next visit.
    With `mates` it is one of several, and `inner` is where their door to its tunnels listens.
    """

    def __init__(
        self,
        routes: Routes,
        *,
        host_key: Path,
        login_keys: Callable[[], Sequence[Path]],
        host: str = "127.0.0.1",
        port: int = 0,
        sockets: Sequence[socket.socket] = (),
        max_sessions: int = 1000,
        banner: str = "",
        check_every: float = 15.0,
        patience: float = 20.0,
        warm: float = 10.0,
        attempts: Attempts | None = None,
        mates: Mates | None = None,
        inner: tuple[str, int] = ("127.0.0.1", 0),
        reach: Callable[[Route], socket.socket] = reach,
    ) -> None:
        self._host_key = host_key
        self._login_keys = PrivateKeys(login_keys)
        self._at = (host, port)
        self._sockets = sockets
        self._make_hub = functools.partial(
            Hub,
            routes=routes,
            reach=reach,
            attempts=attempts or Attempts(),
            banner=banner,
            max_sessions=max_sessions,
            check_every=check_every,
            patience=patience,
            mates=mates,
        )
        self._mates = mates
        self._inner = inner
        self._linger = 0.0
        self._warm = warm
        self._thread: threading.Thread | None = None
        self._running: _Running | None = None
        self._ending: _Running | None = None

    def start(self) -> None:
        """Listen; SetupError when that cannot be."""
        started: Future[_Running] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="essaim-gateway", daemon=True
        )
        self._thread.start()
        try:
            self._running = started.result()
        except BaseException:
            self._thread.join()
            raise

    def stop(self, *, linger: float = 0.0) -> None:
        """End every connection and give up the port.  Sessions are recorded as closed.

        For up to `linger` seconds those who are here may stay; nobody new is let in.
        """
        self._linger = linger
        running, self._running = self._running, None
        if running is None or self._thread is None:
            return
        running.loop.call_soon_threadsafe(running.ended.set)
        self._ending = running
        self._thread.join(linger + STOP_WITHIN)
        if self._thread.is_alive():
            # It is a daemon: the process can end all the same.
            log.error("gateway: still busy %g s after it was told to stop", STOP_WITHIN)

    def hurry(self) -> None:
        """Let a stop that is under way wait for nobody any more."""
        ending = self._ending
        if ending is not None and self._thread is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has just ended
                ending.loop.call_soon_threadsafe(ending.hurry.set)

    async def _serve(self, started: Future[_Running]) -> None:
        """Be a gateway until told to end."""
        listeners: list[asyncssh.SSHAcceptor] = []
        doors: list[asyncio.Server] = []
        try:
            self._login_keys.read()  # said now if it cannot be, not when somebody comes
            hub = self._make_hub(
                executor=ThreadPoolExecutor(16, thread_name_prefix="essaim-gateway-ask"),
                dialers=ThreadPoolExecutor(32, thread_name_prefix="essaim-gateway-dial"),
                keys=self._login_keys,
                tunnels=Tunnels(),
                warm=Warm(self._warm),
            )
        except BaseException as exc:  # noqa: BLE001 - raised in the thread that waits for it
            started.set_exception(exc)
            return
        try:
            if self._mates is not None:
                doors.append(await self._open_inner(hub, self._mates))
            running = await self._open(hub, listeners)
        except BaseException as exc:  # noqa: BLE001 - likewise
            started.set_exception(exc)
        else:
            tasks = [hub.spawn(hub.watch_tunnels())]
            if self._mates is not None:
                tasks.append(hub.spawn(hub.beat(self._mates)))
            started.set_result(running)
            await running.ended.wait()
            await self._see_off(running, listeners)
            for task in tasks:
                task.cancel()
        finally:
            await _close(hub, listeners)
            if doors:
                await _leave(doors, self._mates)

    async def _see_off(self, running: _Running, listeners: Sequence[asyncssh.SSHAcceptor]) -> None:
        """Let nobody in any more, and those who are here finish, for a while."""
        if not self._linger:
            return
        for each in listeners:
            each.close()
        hub = running.hub
        parting = hub.spawn(hub.tunnels.part())
        left = [hub.spawn(hub.all_left()), hub.spawn(_set(running.hurry))]
        await asyncio.wait(left, timeout=self._linger, return_when=asyncio.FIRST_COMPLETED)
        for task in (parting, *left):
            task.cancel()

    async def _open_inner(self, hub: Hub, mates: Mates) -> asyncio.Server:
        """Open the door for the other processes, before anybody's tunnel can end here."""
        host, port = self._inner
        loop = asyncio.get_running_loop()
        try:
            door = await loop.create_server(
                lambda: InnerDoor(hub, mates.own, mates.keys), host, port, backlog=256
            )
        except OSError as exc:
            raise SetupError(
                f"the gateway's inner door cannot listen on {host} port {port}: {exc.strerror}",
                hint="choose another port, or end what listens there",
            ) from exc
        hub.tunnels.changed = hub.changed
        try:
            await hub.ask(mates.open, door.sockets[0].getsockname()[1])
        except BaseException:
            door.close()
            raise
        return door

    async def _open(self, hub: Hub, listeners: list[asyncssh.SSHAcceptor]) -> _Running:
        host, port = self._at
        try:
            listeners.append(await self._listen(hub, host, port))
            for each in self._sockets:  # one by one: whatever listens must be closed
                listener = await self._listen(hub, sock=each)
                listeners.append(listener)
        except OSError as exc:
            raise SetupError(
                f"the gateway cannot listen on {host} port {port}: {exc.strerror}",
                hint="choose another port, or end what listens there",
            ) from exc
        return _Running(
            asyncio.get_running_loop(),
            asyncio.Event(),
            asyncio.Event(),
            hub,
            listeners[0].get_port(),
        )

    async def _listen(self, hub: Hub, *at: Any, **other: Any) -> asyncssh.SSHAcceptor:
        return await asyncssh.create_server(
            lambda: Door(hub),
            *at,
            **other,
            server_host_keys=[load_host_key(self._host_key)],
            server_version="Essaim",
            kex_algs=KEX,
            encryption_algs=_CIPHERS,
            compression_algs=None,
            public_key_auth=True,
            password_auth=False,
            kbdint_auth=False,
            host_based_auth=False,
            gss_host=None,
            x509_trusted_certs=None,
            allow_pty=True,
            line_editor=False,
            x11_forwarding=False,
            agent_forwarding=False,
            encoding=None,
            window=WINDOW,
            login_timeout=LOGIN_WITHIN,
            keepalive_interval=20,
            keepalive_count_max=6,  # a client's network may be away for two minutes
            reuse_address=True,
            backlog=256,
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._running.port if self._running else self._at[1]

    def host_key(self) -> str:
        """Give the key it shows, as in `known_hosts`: always the same, after a restart as well."""
        line = load_host_key(self._host_key).export_public_key().decode()
        return " ".join(line.split()[:2])

    def tunnelled(self) -> list[str]:
        """Name the nodes whose agents keep a tunnel now."""
        return self._running.hub.tunnels.nodes() if self._running else []

    def cut(self, account: str, why: str = "") -> None:
        """End this lease's sessions at once, because it was released or has moved.

        The routes must say so already: clients come back at once.
        """
        text = why or sentence("over", lease=account)

        def end(hub: Hub) -> None:
            hub.warm.drop(account)
            for visitor in list(hub.visitors.get(account, ())):
                visitor.cut(text)

        self._in_loop(end)

    def drop(self, node: str) -> None:
        """Close the tunnels of a node that is no longer one of ours."""
        self._in_loop(lambda hub: hub.tunnels.drop(node))

    def dial(self, node: str, *, within: float = REACH_WITHIN) -> socket.socket:
        """Give a connection through a node's tunnel; TransientError when it has none.

        Blocks, so it must not be called in the gateway's own loop.
        """
        running = self._running
        if running is None:
            raise TransientError(f"{node}: the gateway is not running")
        if threading.current_thread() is self._thread:
            raise RuntimeError("dial blocks: call it outside of the gateway's loop")
        way = running.hub.tunnels.open(node, within=within)
        future = asyncio.run_coroutine_threadsafe(way, running.loop)
        try:
            made = future.result(within + OPEN_WITHIN + 1)
        except TimeoutError as exc:
            future.cancel()
            raise TransientError(f"{node}: the gateway does not answer") from exc
        made.settimeout(None)
        return made

    def _in_loop(self, act: Callable[[Hub], None]) -> None:
        running = self._running
        if running is not None:  # one that does not run has nothing to end
            running.loop.call_soon_threadsafe(act, running.hub)


async def _close(hub: Hub, listeners: Sequence[asyncssh.SSHAcceptor]) -> None:
    """End everything, giving each part some time and none of them more."""
    for each in listeners:
        each.close()
    for visitor in hub.everybody():
        visitor.cut(sentence("stopping"))
    for node in hub.tunnels.nodes():
        hub.tunnels.drop(node)
    await _within(1.0, hub.all_closed())  # the lines that say why need a moment to arrive
    for connection in list(hub.connections):
        connection.abort()
    await _within(PART_WITHIN, hub.all_closed())
    await _within(PART_WITHIN, hub.all_done())
    await _within(PART_WITHIN, hub.warm.close())
    for each in listeners:
        await _within(PART_WITHIN, each.wait_closed())
    hub.close()


async def _leave(doors: Sequence[asyncio.Server], mates: Mates | None) -> None:
    for each in doors:
        each.close()
    if mates is None:
        return
    try:
        async with asyncio.timeout(PART_WITHIN):
            await asyncio.to_thread(mates.leave)
    except Exception as exc:  # noqa: BLE001 - a gateway that is silent counts as dead soon
        log.warning("gateway: the others could not be told that it ends: %s", exc)


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _within(seconds: float, work: Awaitable[object]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work


def load_host_key(path: Path) -> asyncssh.SSHKey:
    """Read the key the gateway shows; made at first use, exactly once, for its owner only."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        body = asyncssh.generate_private_key("ssh-ed25519").export_private_key()
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            # Unlike a rename, a link never replaces the key another process has just made.
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink()
    return asyncssh.read_private_key(path)
