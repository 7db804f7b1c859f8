"""Reading and connecting without holding up the keeper's other tasks."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any

from essaim.drivers.sandbox.loop import READ, WRITE, Ready

if TYPE_CHECKING:
    from collections.abc import Generator


def connect(
    conn: socket.socket, address: str, port: int, seconds: float
) -> Generator[Any, Any, str]:
    """Connect without blocking; the reason when it fails."""
    code = conn.connect_ex((address, port))
    if code == errno.EINPROGRESS:
        if not (yield Ready(conn.fileno(), WRITE, seconds)):
            return f"no answer in {seconds:.0f} s"
        code = conn.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return os.strerror(code) if code else ""


def read_all(fd: int, seconds: float) -> Generator[Any, Any, str | None]:
    """Read until the other end closes; None when that takes too long."""
    report = b""
    while (yield Ready(fd, READ, seconds)):
        data = os.read(fd, 4096)
        if not data:
            return report.decode(errors="replace")
        report += data
    return None
