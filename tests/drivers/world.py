"""A computer with a world around it, in a network namespace of its own: no real network is touched.

`in_a_world(command)` runs a command there.  `OUTSIDE` answers HTTP, `FORBIDDEN` and the loopback do
too and must not be reached; the computer's resolver listens on its loopback, as systemd's does.
Standard library only: a plain user runs it with the system's Python.
"""

from __future__ import annotations

import http.server
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

OUTSIDE, FORBIDDEN, LOOPBACK = "198.51.100.1", "169.254.169.254", "127.0.0.1"
PORT = 8080
NAME = "world.test"
_SETUP = f"""
set -e
ip link set lo up
ip addr add {OUTSIDE}/32 dev lo
ip addr add {FORBIDDEN}/32 dev lo
echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start
printf 'nameserver {LOOPBACK}\\nsearch test\\n' >"$1"
mount --bind "$1" /etc/resolv.conf
shift
exec "$@"
"""


def in_a_world(resolv_conf: str, command: Sequence[str]) -> list[str]:
    """Wrap a command that root starts; it may become somebody else."""
    return ["unshare", "--net", "--mount", "sh", "-c", _SETUP, "sh", resolv_conf, *command]


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"this is {self.server.server_address[0]}\n".encode() * 10_000)

    def log_message(self, *_args: object) -> None:
        """Be quiet."""


@contextmanager
def world() -> Iterator[None]:
    """Servers that answer until the end."""
    servers = [
        http.server.ThreadingHTTPServer((address, PORT), _Page)
        for address in (OUTSIDE, FORBIDDEN, LOOPBACK)
    ]
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind((LOOPBACK, 53))
    threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in servers]
    threads.append(threading.Thread(target=_answer_names, args=(names,), daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
        names.close()


def _answer_names(conn: socket.socket) -> None:
    """Say that every name is OUTSIDE."""
    while True:
        try:
            query, who = conn.recvfrom(4096)
        except OSError:
            return
        end = query.index(b"\0", 12) + 5
        is_a = query[end - 4 : end - 2] == b"\0\1"
        head = query[:2] + struct.pack(">HHHHH", 0x8180, 1, int(is_a), 0, 0)
        answer = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton(OUTSIDE)
        conn.sendto(head + query[12:end] + (answer if is_a else b""), who)
