"""HTTPS in front of the cluster: thin, quick, and with reason phrases as Proxmox VE writes them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hmac
import json
import ssl
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote

from typing_extensions import override

from essaim_lab.simulators.proxmox.cluster import OK, Answer, Cluster, Request
from essaim_lab.simulators.proxmox.errors import BAD_REQUEST, MISSING

BASE = "/api2/json"
LOOPBACK = ("127.", "::1")
MOST = 1 << 20  #: bytes a request may have
_WRITING = ("POST", "PUT")


class Server:
    """Answers for a cluster, in a thread of its own, until it is closed."""

    def __init__(self, cluster: Cluster, context: ssl.SSLContext, secret: str) -> None:
        self.cluster = cluster
        self.secret = secret
        self.eager = False  #: let things happen in time even when nobody asks
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxmox-simulator", daemon=True)
        self._servers: dict[str, asyncio.Server] = {}
        self._places: dict[str, tuple[str, int]] = {}
        self._shutting: list[concurrent.futures.Future[int]] = []
        self.connections: set[Connection] = set()
        self.pending = 0
        self._timer: asyncio.TimerHandle | None = None

    def open(self, host: str, port: int, door: str = "") -> int:
        """Listen; gives the port.  A door is a node's: it is shut when that node is lost."""
        if not self._thread.is_alive():
            self._thread.start()
        asked = self._listen(host, port, door)
        try:
            return asyncio.run_coroutine_threadsafe(asked, self._loop).result()
        except OSError:
            self.close()
            raise

    async def _listen(self, host: str, port: int, door: str) -> int:
        server = await self._loop.create_server(
            lambda: Connection(self, door), host, port, ssl=self._context, backlog=1024
        )
        self._servers[door] = server
        got = int(server.sockets[0].getsockname()[1])
        self._places[door] = (host, got)
        if self.eager:
            self.arrange()
        return got

    def shut(self, door: str, lost: bool) -> None:  # noqa: FBT001 - as it is called
        """Answer no more at a node that is lost, and again when it comes back."""
        if door in self._places:
            asked = self._shut(door) if lost else self._listen(*self._places[door], door)
            self._shutting.append(asyncio.run_coroutine_threadsafe(asked, self._loop))

    def settle(self) -> None:
        """Wait until doors are as they were told to be; not with the clock's lock held."""
        while self._shutting:
            self._shutting.pop().result()

    async def _shut(self, door: str) -> int:
        self._servers[door].close()
        for connection in [each for each in self.connections if each.door == door]:
            connection.drop()
        return 0

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def close(self) -> None:
        """Stop answering; connections are dropped."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _close(self) -> None:
        if self._timer:
            self._timer.cancel()
        for server in self._servers.values():
            server.close()
        for connection in list(self.connections):
            connection.drop()
        # Transports tell their sockets good-bye in the next turns.
        for _ in range(3):
            await asyncio.sleep(0)

    def soon(self, act: Callable[[], None]) -> None:
        """Do it in this server's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act)

    def arrange(self) -> None:
        """Look again when something happens that somebody waits for."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if not self.pending and not self.eager:
            return
        seconds = self.cluster.clock.wait()
        if self.eager:
            seconds = min(0.2, 0.2 if seconds is None else seconds)
        if seconds is not None:
            self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        with self.cluster.clock.lock:
            self.cluster.clock.settle()
        self.arrange()


class Connection(asyncio.Protocol):
    """One client's connection: a request at a time."""

    def __init__(self, server: Server, door: str = "") -> None:
        self._server = server
        self.door = door
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._busy = False
        self._peer = ""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember it."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for the type checker
        self._transport = transport
        self._peer = (transport.get_extra_info("peername") or ("",))[0]
        self._server.connections.add(self)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._server.connections.discard(self)

    def drop(self) -> None:
        """End it without a word."""
        self._transport.abort()

    @override
    def data_received(self, data: bytes) -> None:
        """Answer as soon as a request is complete."""
        self._buffer += data
        if not self._busy:
            self._next()

    def _next(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MOST:
                self.drop()
            return
        lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length") or 0)
        if length > MOST:
            self.drop()
            return
        if len(self._buffer) < end + 4 + length:
            return
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        words = lines[0].split(" ")
        if len(words) != 3:  # noqa: PLR2004 - METHOD target version
            self._write(Answer(BAD_REQUEST, None, "bad request"), close=True)
            return
        self._busy = True
        close = headers.get("connection", "").lower() == "close"
        self._handle(words[0], words[1], headers, body, close=close)

    def _handle(
        self, method: str, target: str, headers: dict[str, str], body: bytes, *, close: bool
    ) -> None:
        path, _, query = target.partition("?")
        path = unquote(path)
        if path.startswith("/lab/"):
            self._write(self._lab(method, path, headers, body), close=close)
            return
        if not path.startswith(f"{BASE}/"):
            self._write(Answer(MISSING, None, "no such uri"), close=True)
            return
        try:
            said = _said(method, query, headers, body)
        except ValueError as error:
            self._write(Answer(MISSING, None, str(error)), close=True)
            return
        request = Request(
            method,
            path[len(BASE) :],
            said,
            ticket=_cookie(headers),
            csrf=headers.get("csrfpreventiontoken", ""),
            token=_after(headers.get("authorization", ""), "PVEAPIToken="),
        )
        self._submit(request, close=close)

    def _submit(self, request: Request, *, close: bool) -> None:
        server, clock = self._server, self._server.cluster.clock
        state = {"answered": False, "waits": False}

        def done(answer: Answer) -> None:
            state["answered"] = True
            if not state["waits"]:
                self._write(answer, close=close)
                return
            clock.unblocked()
            server.soon(lambda: late(answer))

        def late(answer: Answer) -> None:
            server.pending -= 1
            self._write(answer, close=close)

        with clock.lock:
            server.cluster.submit(request, done)
            if not state["answered"]:
                state["waits"] = True
                server.pending += 1
                clock.blocked()
        if server.pending:
            server.arrange()

    def _write(self, answer: Answer, *, close: bool = False) -> None:
        self._busy = False
        if self._transport.is_closing():
            return
        document: dict[str, Any] = {"data": answer.data}
        reason = answer.message
        if answer.status != OK:
            document["message"] = f"{answer.message}\n"
            if answer.errors:
                document["errors"] = answer.errors
            close = True  # as Proxmox VE does
        if answer.total is not None:
            document["total"] = answer.total
        body = json.dumps(document, separators=(",", ":")).encode()
        head = (
            f"HTTP/1.1 {answer.status} {reason.splitlines()[0] if reason else ''}\r\n"
            "Content-Type: application/json;charset=UTF-8\r\n"
            "Server: pve-api-daemon/3.0\r\n"
            f"Content-Length: {len(body)}\r\n"
            f"Connection: {'close' if close else 'Keep-Alive'}\r\n\r\n"
        )
        self._transport.write(head.encode("latin-1", "replace") + body)
        if close:
            self._transport.close()
        elif self._buffer:
            self._next()

    def _lab(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """What only the lab itself may ask."""
        given = _after(headers.get("authorization", ""), "Bearer ")
        if not self._peer.startswith(LOOPBACK) or not hmac.compare_digest(
            given, self._server.secret
        ):
            return Answer(HTTPStatus.FORBIDDEN, None, "only for the lab")
        try:
            return Answer(data=self._ask_lab(f"{method} {path}", json.loads(body or b"{}")))
        except LookupError:
            return Answer(MISSING, None, "no such uri")
        except (ValueError, TypeError) as error:
            return Answer(BAD_REQUEST, None, str(error))

    def _ask_lab(self, what: str, said: dict[str, Any]) -> Any:
        cluster = self._server.cluster
        with cluster.clock.lock:
            match what:
                case "POST /lab/faults":
                    return cluster.faults.set(said.pop("fault", ""), **said)
                case "DELETE /lab/faults":
                    return cluster.faults.heal()
                case "POST /lab/unlock":
                    return cluster.faults.unlock(int(said.get("vmid", 0)))
                case "GET /lab/machines":
                    return cluster.machines()
                case "GET /lab/counts":
                    return {**cluster.tally.told(), "faults": dict(cluster.faults.seen)}
                case _:
                    raise LookupError(what)


def _said(method: str, query: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    said: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    if not body:
        return said
    if method not in _WRITING:
        raise ValueError(f"Unexpected content for method '{method}'")
    if headers.get("content-type", "").startswith("application/json"):
        given = json.loads(body)
        return {**said, **{key: _plain(value) for key, value in given.items()}}
    return {**said, **_form(body.decode())}


def _form(text: str) -> dict[str, Any]:
    """Read a form; what is said several times is a list."""
    said: dict[str, Any] = {}
    for key, value in parse_qsl(text, keep_blank_values=True):
        before = said.get(key)
        said[key] = value if before is None else [*_listed(before), value]
    return said


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return str(int(value)) if isinstance(value, bool) else str(value)


def _cookie(headers: dict[str, str]) -> str:
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == "PVEAuthCookie":
            return unquote(value)
    return unquote(_after(headers.get("authorization", ""), "PVEAuthCookie="))


def _after(text: str, start: str) -> str:
    return text[len(start) :] if text.startswith(start) else ""
