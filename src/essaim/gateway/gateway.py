"""The SSH gateway: `ssh LEASE@gateway` reaches the machine that holds the lease now."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncssh

from essaim.gateway.attempts import Attempts
from essaim.gateway.door import Door
from essaim.gateway.hub import REACH_WITHIN, Hub
from essaim.gateway.relay import WINDOW
from essaim.gateway.routes import Route, Routes, SessionStart
from essaim.gateway.tunnels import OPEN_WITHIN, Tunnels
from essaim.model.errors import SetupError, TransientError

__all__ = ["Gateway", "Route", "Routes", "SessionStart"]

#: Seconds to log in; seconds that ended sessions have to be recorded when the gateway stops.
LOGIN_WITHIN, STOP_WITHIN = 30.0, 5.0
#: The second is for clients that lack the first; post-quantum ones cost ten times as much.
_KEX = ("curve25519-sha256", "curve25519-sha256@libssh.org", "ecdh-sha2-nistp256")
#: Without ChaCha20, which OpenSSH's client would choose: here it moves a third less.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")

# Its info level prints whole command lines.
asyncssh.set_log_level("WARNING")


def reach(route: Route) -> socket.socket:
    """Connect to the address a node is known by."""
    return socket.create_connection((route.address, route.port), REACH_WITHIN)


class Gateway:
    """One listening address for all leases and all agents' tunnels.

    `start` and `stop` are called in an event loop, which must go on running in between; `cut`,
    `drop` and `dial` in any thread.  `host_key` is made when it is not there; `user_key` logs in to
    nodes as the account of the lease.  `check_every` is how often, in seconds, a lease in use is
    looked at again, so that what other processes decide is noticed as well; `patience` is how long
    a client waits while no machine holds the lease, because it is being moved.
    """

    def __init__(
        self,
        routes: Routes,
        *,
        host_key: Path,
        user_key: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        sockets: Sequence[socket.socket] = (),
        max_sessions: int = 1000,
        banner: str = "",
        check_every: float = 15.0,
        patience: float = 20.0,
        attempts: Attempts | None = None,
        reach: Callable[[Route], socket.socket] = reach,
    ) -> None:
        self._host_key = host_key
        self._at = (host, port)
        self._sockets = sockets
        self._beside: list[asyncssh.SSHAcceptor] = []
        self._make_hub = functools.partial(
            Hub,
            routes=routes,
            reach=reach,
            attempts=attempts or Attempts(),
            banner=banner,
            max_sessions=max_sessions,
            check_every=check_every,
            patience=patience,
        )
        self._user_key = user_key
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._hub: Hub | None = None
        self._listener: asyncssh.SSHAcceptor | None = None

    async def start(self) -> None:
        """Listen; SetupError when that cannot be."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        hub = self._make_hub(
            executor=ThreadPoolExecutor(16, thread_name_prefix="essaim-gateway"),
            dialers=ThreadPoolExecutor(32, thread_name_prefix="essaim-gateway-dial"),
            key=asyncssh.read_private_key(self._user_key),
            tunnels=Tunnels(),
        )
        host, port = self._at
        listen = functools.partial(self._listen, hub)
        try:
            self._listener = await listen(host, port)
            self._beside = [await listen(sock=each) for each in self._sockets]
        except OSError as exc:
            hub.close()
            raise SetupError(
                f"the gateway cannot listen on {host} port {port}: {exc.strerror}",
                hint="choose another port, or end what listens there",
            ) from exc
        self._hub = hub

    async def _listen(self, hub: Hub, *at: Any, **other: Any) -> asyncssh.SSHAcceptor:
        return await asyncssh.create_server(
            lambda: Door(hub),
            *at,
            **other,
            server_host_keys=[load_host_key(self._host_key)],
            server_version="Essaim",
            kex_algs=_KEX,
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

    async def stop(self) -> None:
        """End every connection and give up the port.  Sessions are recorded as closed."""
        listener, hub = self._listener, self._hub
        self._listener = self._hub = None
        if listener is None or hub is None:
            return
        for each in (listener, *self._beside):
            each.close()
        for visitor in hub.everybody():
            visitor.cut("the gateway is stopping: log in again")
        for node in hub.tunnels.nodes():
            hub.tunnels.drop(node)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):  # the lines that say why need a moment to arrive
                await hub.all_closed()
        for connection in list(hub.connections):
            connection.abort()
        await hub.all_closed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WITHIN):
                while hub.tasks:
                    await asyncio.wait(list(hub.tasks))
        for task in list(hub.tasks):
            task.cancel()
        await listener.wait_closed()
        hub.close()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._listener.get_port() if self._listener else self._at[1]

    def host_key(self) -> str:
        """Give the key it shows, as in `known_hosts`: always the same, after a restart as well."""
        line = load_host_key(self._host_key).export_public_key().decode()
        return " ".join(line.split()[:2])

    def tunnelled(self) -> list[str]:
        """Name the nodes whose agents keep a tunnel now."""
        return self._hub.tunnels.nodes() if self._hub else []

    def cut(self, account: str, why: str = "") -> None:
        """End this lease's sessions at once, because it was released or has moved.

        The routes must say so already: clients come back at once.
        """
        text = why or f"lease {account} has ended or moved"

        def end(hub: Hub) -> None:
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
        hub, loop = self._hub, self._loop
        if hub is None or loop is None:
            raise TransientError(f"{node}: the gateway is not running")
        if threading.get_ident() == self._thread:
            raise RuntimeError("dial blocks: call it outside of the gateway's loop")
        future = asyncio.run_coroutine_threadsafe(hub.tunnels.open(node, within=within), loop)
        try:
            made = future.result(within + OPEN_WITHIN + 1)
        except TimeoutError as exc:
            future.cancel()
            raise TransientError(f"{node}: the gateway does not answer") from exc
        made.settimeout(None)
        return made

    def _in_loop(self, act: Callable[[Hub], None]) -> None:
        hub, loop = self._hub, self._loop
        # A gateway that does not run has nothing to end.
        if hub is not None and loop is not None:
            loop.call_soon_threadsafe(act, hub)


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
