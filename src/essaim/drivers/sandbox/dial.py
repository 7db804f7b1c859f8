"""Talk to a keeper; run as a program, hand OpenSSH a connection to a machine (ProxyUseFdpass).

One request and one answer per connection, each a line of JSON.  A connection to a machine arrives
as a file descriptor, so that the caller need not be on the stack's network.
"""

from __future__ import annotations

import array
import json
import os
import socket
import sys
from typing import Any

_FDS = socket.CMSG_SPACE(array.array("i").itemsize)


def ask(
    directory: str, request: dict[str, Any], seconds: float
) -> tuple[dict[str, Any], list[int]]:
    """Send a request to the keeper of a stack; OSError when none answers in time.

    ConnectionRefusedError and FileNotFoundError mean that no keeper runs.
    """
    with _connect(directory, seconds) as conn:
        conn.sendall(json.dumps(request).encode() + b"\n")
        answer = bytearray()
        fds: list[int] = []
        while not answer.endswith(b"\n"):
            data, ancillary, _, _ = conn.recvmsg(1 << 16, _FDS, socket.MSG_CMSG_CLOEXEC)
            fds += _descriptors(ancillary)
            if not data:
                raise ConnectionResetError("the keeper hung up")
            answer += data
        document: dict[str, Any] = json.loads(answer)
        return document, fds


def _connect(directory: str, seconds: float) -> socket.socket:
    # A socket's address holds 107 bytes and a path may be longer.
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            conn.settimeout(seconds)
            conn.connect(f"/proc/self/fd/{fd}/keeper.sock")
        except BaseException:
            conn.close()
            raise
    finally:
        os.close(fd)
    return conn


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


def main() -> None:
    """`dial.py DIRECTORY MACHINE PORT`: pass the connection to whoever reads standard output."""
    directory, machine, port = sys.argv[1:]
    request = {"op": "dial", "name": machine, "port": int(port)}
    try:
        answer, fds = ask(directory, request, 30)
    except (FileNotFoundError, ConnectionRefusedError):
        sys.exit(f"{machine} is off")
    except OSError as error:
        sys.exit(f"{machine} cannot be reached: {error}")
    if "error" in answer:
        sys.exit(answer["what"])
    with socket.socket(fileno=os.dup(1)) as out:
        socket.send_fds(out, [b"\0"], fds)


if __name__ == "__main__":
    main()
