"""One client's connection, tied to one connection to the machine that holds the lease."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import asyncssh

from essaim.gateway.hub import public_data
from essaim.gateway.relay import WINDOW, ForwardEnd, Line, TcpEnd
from essaim.gateway.routes import Route, SessionStart
from essaim.gateway.session import ClientSession, Wanted
from essaim.gateway.upstream import StrangerError, log_in
from essaim.model.errors import EssaimError, RejectedError, TransientError

if TYPE_CHECKING:
    from essaim.gateway.hub import Hub

log = logging.getLogger(__name__)

#: Channels a client may have open at once.
CHANNELS = 64
#: Seconds between the line that says why and the end of the connection.
GRACE = 0.3
#: Seconds between looks at a lease that no machine holds.
LOOK_EVERY = 0.2
#: Seconds a client that was refused may stay.
LINGER = 5.0
#: Seconds the control plane may take to say whether a lease was extended at the last moment.
LAST_WORD = 0.4
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "ip6-localhost"})


class Visit:
    """From a client's login to the end of their connection."""

    def __init__(
        self, hub: Hub, connection: asyncssh.SSHServerConnection, account: str, key: asyncssh.SSHKey
    ) -> None:
        self._hub = hub
        self._connection = connection
        self._line = Line(connection)
        self._far_line: Line | None = None
        self._account = account
        self._key = key
        self._sessions: set[ClientSession] = set()
        self._forwards = 0
        self._route: Route | None = None
        self._audit = ""
        self._in = 0
        self._out = 0
        self._over = False
        room = hub.add(account, self)
        # At once, so that the machine is reached by the time the client asks for a session.
        self._upstream = hub.spawn(self._open(room=room))
        self._watch = hub.spawn(self._watch_lease())

    # The way to the machine

    async def _open(self, *, room: bool) -> asyncssh.SSHClientConnection | str:
        """Give the connection to the machine, or the line that says why there is none."""
        try:
            if not room:
                raise RejectedError("the gateway is full: try again later")
            route = await self._held()
            upstream = await log_in(route, self._hub.key, await self._hub.way_to(route))
        except EssaimError as exc:
            await self._record(refused=exc.what)
            line = _shown(self._account, exc)
            # A client that asks for no session, and so is shown no line, goes as well.
            asyncio.get_running_loop().call_later(LINGER, self.cut, line)
            return line
        try:
            await self._record()
        except BaseException:
            upstream.abort()
            raise
        self._far_line = Line(upstream)
        self._hub.spawn(self._follow(upstream))
        return upstream

    async def _held(self) -> Route:
        """Give the route once a machine holds the lease, which may be moving just now."""
        deadline = time.monotonic() + self._hub.patience
        while True:
            answer = await self._hub.ask(self._hub.routes.lease, self._account)
            self._route = route = self._allowed(answer)
            if route.node:
                return route
            if self._over or time.monotonic() >= deadline:
                text = route.message or "no machine holds it now: try again in a moment"
                raise RejectedError(f"lease {self._account}: {text}")
            await asyncio.sleep(LOOK_EVERY)

    def _allowed(self, route: Route | None) -> Route:
        # Asked again: the lease may have ended or moved while the client logged in.
        if route is None or route.expires_at <= time.time():
            raise RejectedError(f"lease {self._account} has ended")
        if self._key.public_data not in public_data(route.keys):
            raise RejectedError(f"lease {self._account} has another key now")
        return route

    async def _record(self, refused: str = "") -> None:
        start = SessionStart(
            account=self._account,
            node=self._route.node if self._route else "",
            client=self.client,
            key=self._key.get_fingerprint(),
            started_at=time.time(),
            refused=refused,
        )
        self._audit = await self._hub.ask(self._hub.routes.opened, start)
        if self._over:  # the client left meanwhile
            await self._close_record()

    async def _close_record(self) -> None:
        audit, self._audit = self._audit, ""
        if audit:
            await self._hub.ask(self._hub.routes.closed, audit, self._in, self._out)

    async def _follow(self, upstream: asyncssh.SSHClientConnection) -> None:
        if self._over:
            upstream.abort()
        await upstream.wait_closed()
        self.cut(f"the connection to the machine of lease {self._account} was lost: log in again")

    async def _machine(self) -> tuple[asyncssh.SSHClientConnection, Line, Route]:
        """Give the connection to the machine; RejectedError holds the line to show."""
        try:
            found = await asyncio.shield(self._upstream)
        except asyncio.CancelledError:
            raise
        except Exception as exc:
            # A control plane that cannot write the record is no reason to go without one.
            raise RejectedError("the gateway cannot do this now: try again") from exc
        if isinstance(found, str):
            raise RejectedError(found)
        if self._far_line is None or self._route is None:
            raise RuntimeError("a connection without a line or a route")
        return found, self._far_line, self._route

    # What the client asks for

    @property
    def client(self) -> str:
        """The address the client came from."""
        return str((self._connection.get_extra_info("peername") or ("",))[0])

    def session(self) -> ClientSession | None:
        """Give a shell, command or subsystem to be; None when there are too many."""
        if self._over or len(self._sessions) + self._forwards >= CHANNELS:
            return None
        made = ClientSession(self._line, self._receive, self._sessions.discard, self._begin)
        self._sessions.add(made)
        return made

    def _begin(self, session: ClientSession, wanted: Wanted) -> None:
        self._hub.spawn(self._run(session, wanted))

    async def _run(self, session: ClientSession, wanted: Wanted) -> None:
        try:
            upstream, line, route = await self._machine()
            await session.run(upstream, wanted, message=route.message, line=line, count=self._send)
        except RejectedError as exc:
            session.end(exc.what)
        except (asyncssh.Error, OSError) as exc:
            session.end(f"the machine refuses: {exc}")

    def may_forward(self, host: str) -> bool:
        """Say whether a connection to this host may be asked for at all."""
        room = len(self._sessions) + self._forwards < CHANNELS
        return host.lower() in _LOOPBACK and room and not self._over

    async def forward(self, host: str, port: int) -> TcpEnd:
        """Open a connection to a port of the machine's own loopback."""
        self._forwards += 1
        try:
            return await self._forward(host, port)
        except BaseException as exc:
            self._left()
            if isinstance(exc, RejectedError):
                raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, exc.what) from exc
            raise

    async def _forward(self, host: str, port: int) -> TcpEnd:
        upstream, line, route = await self._machine()
        if not route.forwarding:
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "this lease has no port forwarding"
            )
        far = TcpEnd(line, self._send)
        await upstream.create_connection(lambda: far, host, port, encoding=None, window=WINDOW)
        return ForwardEnd(self._line, self._receive, far, self._left)

    def _left(self) -> None:
        self._forwards -= 1

    def _receive(self, size: int) -> None:
        self._in += size

    def _send(self, size: int) -> None:
        self._out += size

    # Its end

    async def _watch_lease(self) -> None:
        """End the connection when the lease does, wherever that was decided."""
        await asyncio.wait([self._upstream])
        while not self._over and self._route is not None:
            left = self._route.expires_at - time.time()
            await asyncio.sleep(max(0.0, min(left, self._hub.check_every)))
            try:
                # Only an extension saves a lease whose time is over, so it is not waited for long.
                left = self._route.expires_at - time.time()
                within = max(LAST_WORD, min(left, self._hub.check_every))
                async with asyncio.timeout(within):
                    route = await self._hub.ask(self._hub.routes.lease, self._account)
            except Exception as exc:  # noqa: BLE001 - the last known answer stays good
                log.warning("gateway: no answer about lease %s: %s", self._account, exc)
                route = self._route
            if why := self._reason(route):
                self.cut(why)
                return
            self._route = route

    def _reason(self, route: Route | None) -> str:
        known = self._route
        if route is not None and route.expires_at > time.time() and not route.node:
            return f"lease {self._account} has lost its machine: log in again"
        if route is None:
            expired = known is not None and known.expires_at <= time.time()
            return f"lease {self._account} has {'expired' if expired else 'ended'}"
        if route.expires_at <= time.time():
            return f"lease {self._account} has expired"
        if self._key.public_data not in public_data(route.keys):
            return f"lease {self._account} has another key now"
        if known is not None and (route.node, route.host_key) != (known.node, known.host_key):
            return f"lease {self._account} has moved to another machine: log in again"
        return ""

    def cut(self, why: str) -> None:
        """End everything within a second; every session shows why."""
        if self._over:
            return
        self._leave()
        for session in list(self._sessions):
            session.end(why)
        # The line needs a moment to arrive: what closes a connection also discards what is sent.
        loop = asyncio.get_running_loop()
        loop.call_later(GRACE, self._connection.disconnect, asyncssh.DISC_BY_APPLICATION, why)

    def closed(self) -> None:
        """The client's connection has ended."""
        self._leave()

    def _leave(self) -> None:
        if self._over:
            return
        self._over = True
        self._hub.remove(self._account, self)
        self._watch.cancel()
        self._hub.spawn(self._hang_up())
        self._hub.spawn(self._close_record())

    async def _hang_up(self) -> None:
        await asyncio.wait([self._upstream])
        if self._upstream.cancelled() or self._upstream.exception() is not None:
            return
        upstream = self._upstream.result()
        if not isinstance(upstream, str):
            upstream.close()


def _shown(account: str, exc: EssaimError) -> str:
    """Say what the client may know; the record holds the rest."""
    if isinstance(exc, StrangerError):
        return f"the machine of lease {account} did not prove who it is: ask an operator"
    if isinstance(exc, TransientError):
        return f"the machine of lease {account} cannot be reached now: try again ({exc.what})"
    return exc.what
