"""The way out of a stack: `uplink.py FD DIRECTORY`, a program on the computer's own network.

The keeper redirects what machines send to the world to sockets in the stack's namespace and hands
those over FD; whatever arrives there is passed on from here, as any program of this user could.
So nothing of the computer's network is changed.  It ends when the keeper closes FD, or dies.

Passed on are TCP and names (DNS, to the resolvers of this computer, those on its loopback
included).  Never passed on is what leads back into this computer: loopback, link-local addresses.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # run by a Python that knows of no package
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from essaim.drivers.sandbox.loop import READ, WRITE, Loop, Ready, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    Whereto = Callable[[socket.socket], tuple[str, int] | None]

SOCKETS = 3  #: handed over: TCP that was redirected, DNS over TCP, DNS over UDP
_ORIGINAL_DESTINATION = 80
_CONNECT_SECONDS, _ANSWER_SECONDS = 30.0, 4.0
_CHUNK = 1 << 16
_RESOLV_CONF = Path("/etc/resolv.conf")
#: This network, loopback, link-local (where clouds answer with credentials), multicast and beyond.
_FORBIDDEN = ((0x00, 0xFF), (0x7F, 0xFF), (0xA9FE, 0xFFFF), (0xE0, 0xF0), (0xF0, 0xF0))


def is_forbidden(address: str) -> bool:
    """Tell whether an address leads back into this computer, or nowhere."""
    (number,) = struct.unpack(">I", socket.inet_aton(address))
    for value, mask in _FORBIDDEN:
        shift = 16 if mask > 0xFF else 24  # noqa: PLR2004 - of two bytes, or one
        if number >> shift & mask == value:
            return True
    return False


def resolvers(path: Path = _RESOLV_CONF) -> list[str]:
    """List the name servers of this computer."""
    with suppress(OSError):
        lines = [line.split() for line in path.read_text(errors="replace").splitlines()]
        return [words[1] for words in lines if words[:1] == ["nameserver"] and len(words) > 1]
    return []


class Uplink:
    """Passes on what arrives on the stack's sockets."""

    def __init__(self, loop: Loop, sockets: list[socket.socket]) -> None:
        self._loop = loop
        tcp, dns_tcp, dns_udp = sockets
        self._own = tcp.getsockname()
        loop.spawn(self._accept(tcp, self._destination))
        loop.spawn(self._accept(dns_tcp, self._resolver))
        loop.spawn(self._ask(dns_udp))

    def _accept(self, listener: socket.socket, whereto: Whereto) -> Task:
        while True:
            yield Ready(listener.fileno(), READ)
            with suppress(OSError):
                while True:
                    conn, _ = listener.accept()
                    conn.settimeout(0)
                    self._loop.spawn(self._serve(conn, whereto))

    def _destination(self, conn: socket.socket) -> tuple[str, int] | None:
        raw = conn.getsockopt(socket.IPPROTO_IP, _ORIGINAL_DESTINATION, 16)
        port, packed = struct.unpack_from(">2xH4s", raw)
        address = socket.inet_ntoa(packed)
        if is_forbidden(address) or (address, port) == self._own:
            return None
        return address, port

    def _resolver(self, _conn: socket.socket) -> tuple[str, int] | None:
        return next(((server, 53) for server in resolvers()), None)

    def _serve(self, conn: socket.socket, whereto: Whereto) -> Task:
        other = None
        with suppress(OSError):
            if target := whereto(conn):
                other = yield from _connect(target)
        if other is None:
            # A reset, not an end: nobody was there.
            conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
            conn.close()
            return
        for each in (conn, other):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Each direction has descriptors of its own, for each waits by itself.
        self._loop.spawn(_pass_on(conn.dup(), other.dup()))
        self._loop.spawn(_pass_on(other, conn))

    def _ask(self, names: socket.socket) -> Task:
        while True:
            yield Ready(names.fileno(), READ)
            with suppress(OSError):
                while True:
                    query, who = names.recvfrom(_CHUNK)
                    self._loop.spawn(_answer(names, query, who))


def _connect(target: tuple[str, int]) -> Task:
    """Connect without blocking; None when nobody answers."""
    family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
    conn = socket.socket(family, socket.SOCK_STREAM)
    conn.settimeout(0)
    with suppress(BlockingIOError):
        conn.connect(target)
    ready = yield Ready(conn.fileno(), WRITE, _CONNECT_SECONDS)
    if ready and not conn.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        return conn
    conn.close()
    return None


def _pass_on(source: socket.socket, sink: socket.socket) -> Task:
    """Copy one direction of a connection until its end."""
    with source, sink:
        for each in (source, sink):
            each.settimeout(0)
        with suppress(OSError):
            while True:
                yield Ready(source.fileno(), READ)
                data = memoryview(source.recv(_CHUNK))
                if not data:
                    break
                while data:
                    try:
                        data = data[sink.send(data) :]
                    except BlockingIOError:
                        yield Ready(sink.fileno(), WRITE)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def _answer(names: socket.socket, query: bytes, who: tuple[str, int]) -> Task:
    """Ask the resolvers of this computer, one after the other."""
    for server in resolvers():
        family = socket.AF_INET6 if ":" in server else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as conn, suppress(OSError):
            conn.settimeout(0)
            conn.connect((server, 53))
            conn.send(query)
            if (yield Ready(conn.fileno(), READ, _ANSWER_SECONDS)):
                names.sendto(conn.recv(_CHUNK), who)
                return


def _end_with(loop: Loop, keeper: socket.socket) -> Task:
    yield Ready(keeper.fileno(), READ)
    loop.stop()


def _log(text: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"{text.rstrip()}\n")
        sys.stderr.flush()


def main() -> None:
    """Take over the sockets, then serve until the keeper lets go."""
    keeper = socket.socket(fileno=int(sys.argv[1]))
    _, fds, _, _ = socket.recv_fds(keeper, 16, SOCKETS)
    if len(fds) != SOCKETS:
        sys.exit("no sockets were handed over")
    loop = Loop(_log)
    sockets = [socket.socket(fileno=fd) for fd in fds]
    for each in sockets:
        each.settimeout(0)
    Uplink(loop, sockets)
    loop.spawn(_end_with(loop, keeper))
    loop.run()
    os._exit(0)  # its sockets keep the stack's network alive: let go of all at once


if __name__ == "__main__":
    main()
