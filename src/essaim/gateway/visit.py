"""One client's connection, tied to one connection to the machine that holds the lease."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import asyncssh

from essaim.gateway.hub import public_data
from essaim.gateway.relay import WINDOW, ForwardEnd, Line, TcpEnd
from essaim.gateway.routes import Route, SessionStart, split
from essaim.gateway.sentences import RefusedError, in_one_line, sentence
from essaim.gateway.session import ClientSession, Wanted
from essaim.gateway.upstream import StrangerError, log_in
from essaim.model.errors import EssaimError, TransientError

if TYPE_CHECKING:
    from essaim.gateway.hub import Hub

log = logging.getLogger(__name__)

#: Channels a client may have open at once.
CHANNELS = 64
#: Seconds between the line that says why and the end of the connection.
GRACE = 0.3
#: Seconds between looks at a lease that no machine holds: the first, and the longest.
FIRST_LOOK, LOOK_EVERY = 0.02, 0.2
#: Seconds between looks whether a lease has moved off a machine that is slow to answer.
LOOK_WHILE_WAITING = 0.5
#: Seconds a client that was refused may stay.
LINGER = 5.0
#: Seconds what a client left open on the machine may take to close, for the next to use the way.
CLOSE_WITHIN = 2.0
#: Seconds the control plane may take to say whether a lease was extended at the last moment.
LAST_WORD = 0.4
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "ip6-localhost"})


class Visit:
    """From a client's login to the end of their connection."""

    def __init__(
        self, hub: Hub, connection: asyncssh.SSHServerConnection, name: str, key: asyncssh.SSHKey
    ) -> None:
        self._hub = hub
        self._connection = connection
        self._line = Line(connection)
        self._far_line: Line | None = None
        self._name = name
        self._account, _ = split(name)
        self._key = key
        self._sessions: set[ClientSession] = set()
        self._forwards = 0
        self._route: Route | None = None
        self._audit = ""
        self._in = 0
        self._out = 0
        self._over = False
        room = hub.add(self._account, self)
        # At once, so that the machine is reached by the time the client asks for a session.
        self._upstream = hub.spawn(self._open(room=room))
        self._watch = hub.spawn(self._watch_lease())
        self._follow: asyncio.Task[None] | None = None

    # The way to the machine

    async def _open(self, *, room: bool) -> asyncssh.SSHClientConnection | RefusedError:
        """Give the connection to the machine, or what says why there is none."""
        try:
            if not room:
                raise RefusedError("full")
            upstream = await self._reach()
        except EssaimError as exc:
            await self._record(refused=exc.what)
            refusal = _shown(self._name, exc)
            # A client that asks for no session, and so is shown no line, goes as well.
            asyncio.get_running_loop().call_later(LINGER, self.cut, refusal.shown)
            return refusal
        try:
            await self._record()
        except BaseException:
            upstream.abort()
            raise
        self._far_line = Line(upstream)
        self._follow = self._hub.spawn(self._until_lost(upstream))
        return upstream

    async def _reach(self) -> asyncssh.SSHClientConnection:
        """Log in at the machine that holds the lease; at its successor when that moves meanwhile.

        A machine that was lost does not answer, and may be waited for longer than the move takes.
        """
        while True:
            route = await self._held()
            warm = self._hub.warm.take(route)
            if warm is not None:
                return warm
            attempt = asyncio.ensure_future(self._log_in(route))
            try:
                while not (await asyncio.wait([attempt], timeout=LOOK_WHILE_WAITING))[0]:
                    now = await self._hub.ask(self._hub.routes.lease, self._name)
                    if now is None or (now.node, now.host_key) != (route.node, route.host_key):
                        break
                else:
                    return attempt.result()
            finally:
                attempt.cancel()

    async def _log_in(self, route: Route) -> asyncssh.SSHClientConnection:
        return await log_in(route, self._hub.keys.read(), await self._hub.way_to(route))

    async def _held(self) -> Route:
        """Give the route once a machine holds the lease, which may be moving just now."""
        deadline, pause = time.monotonic() + self._hub.patience, FIRST_LOOK
        while True:
            answer = await self._hub.ask(self._hub.routes.lease, self._name)
            if answer is None or answer.expires_at <= time.time():
                raise await self._refusal()
            self._route = route = self._allowed(answer)
            if route.node:
                return route
            if self._over or route.final or time.monotonic() >= deadline:
                raise RefusedError(route.waits, lease=self._name)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LOOK_EVERY)

    async def _refusal(self) -> RefusedError:
        """Say why the name leads nowhere, to who holds the key."""
        found = await self._hub.ask(self._hub.routes.refusal, self._name)
        if found is None or self._key.public_data not in public_data(found.keys):
            return RefusedError("ended", lease=self._name)
        return RefusedError(found.sentence, **found.fields)

    def _allowed(self, route: Route) -> Route:
        # Asked again: the lease may have moved while the client logged in.
        if self._key.public_data not in public_data(route.keys):
            raise RefusedError("key", lease=self._name)
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

    async def _until_lost(self, upstream: asyncssh.SSHClientConnection) -> None:
        await upstream.wait_closed()
        self.cut(sentence("broken", lease=self._name))

    async def _machine(self) -> tuple[asyncssh.SSHClientConnection, Line, Route]:
        """Give the connection to the machine; RefusedError holds the line to show."""
        try:
            found = await asyncio.shield(self._upstream)
        except asyncio.CancelledError:
            raise
        except Exception as exc:
            # A control plane that cannot write the record is no reason to go without one.
            raise RefusedError("unable") from exc
        if isinstance(found, RefusedError):
            raise found
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
        except RefusedError as exc:
            session.end(exc.shown)
        except (asyncssh.Error, OSError) as exc:
            session.end(sentence("refuses", why=exc))

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
            if isinstance(exc, RefusedError):
                line = in_one_line(exc.shown)
                raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, line) from exc
            raise

    async def _forward(self, host: str, port: int) -> TcpEnd:
        upstream, line, route = await self._machine()
        if not route.forwarding:
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, in_one_line(sentence("forwarding"))
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
            await asyncio.sleep(max(0.0, min(left, self._hub.look_again())))
            try:
                # Only an extension saves a lease whose time is over, so it is not waited for long.
                left = self._route.expires_at - time.time()
                within = max(LAST_WORD, min(left, self._hub.check_every))
                async with asyncio.timeout(within):
                    route = await self._hub.ask(self._hub.routes.lease, self._name)
            except Exception as exc:  # noqa: BLE001 - the last known answer stays good
                log.warning("gateway: no answer about lease %s: %s", self._name, exc)
                route = self._route
            if why := self._reason(route):
                self.cut(sentence(why, lease=self._name))
                return
            self._route = route

    def _reason(self, route: Route | None) -> str:
        """Give the key of the sentence that says why this must end, or nothing."""
        known, now = self._route, time.time()
        if route is None:
            return "expired" if known is not None and known.expires_at <= now else "ended"
        if route.expires_at <= now:
            return "expired"
        if not route.node:
            return "lost"
        if self._key.public_data not in public_data(route.keys):
            return "key"
        if known is not None and (route.node, route.host_key) != (known.node, known.host_key):
            return "moved"
        return ""

    def cut(self, why: str) -> None:
        """End everything within a second; every session shows why."""
        if self._over:
            return
        self._leave(keep=False)
        for session in list(self._sessions):
            session.end(why)
        # The line needs a moment to arrive: what closes a connection also discards what is sent.
        last = in_one_line(why)
        loop = asyncio.get_running_loop()
        loop.call_later(GRACE, self._connection.disconnect, asyncssh.DISC_BY_APPLICATION, last)

    def closed(self) -> None:
        """The client's connection has ended."""
        self._leave(keep=True)

    def _leave(self, *, keep: bool) -> None:
        if self._over:
            return
        self._over = True
        self._hub.remove(self._account, self)
        self._watch.cancel()
        if self._follow is not None:
            self._follow.cancel()
        self._hub.spawn(self._hang_up(keep=keep))
        self._hub.spawn(self._close_record())

    async def _hang_up(self, *, keep: bool) -> None:
        """Leave the way to the machine to the lease's next visit, or close it."""
        await asyncio.wait([self._upstream])
        if self._upstream.cancelled() or self._upstream.exception() is not None:
            return
        upstream = self._upstream.result()
        if isinstance(upstream, RefusedError):
            return
        if self._follow is not None:
            self._follow.cancel()
        if keep and await self._emptied() and self._route is not None:
            keep = not upstream.is_closed() and self._hub.warm.keep(self._route, upstream)
            if keep:
                return
        upstream.close()
        await upstream.wait_closed()

    async def _emptied(self) -> bool:
        if self._far_line is None:
            return False
        try:
            async with asyncio.timeout(CLOSE_WITHIN):
                await self._far_line.emptied()
        except TimeoutError:
            return False
        return True


def _shown(name: str, exc: EssaimError) -> RefusedError:
    """Say what the client may know; the record holds the rest."""
    if isinstance(exc, RefusedError):
        return exc
    if isinstance(exc, StrangerError):
        return RefusedError("stranger", lease=name)
    if isinstance(exc, TransientError):
        return RefusedError("unreached", lease=name, why=exc.what)
    return RefusedError("refuses", why=exc.what)
