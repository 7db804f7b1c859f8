"""Lets OpenSSH use a connection that only this process can make, such as one through a gateway.

Run as a program, it is what OpenSSH runs to be handed that connection (ProxyUseFdpass).
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from essaim.remote.ssh import Target

#: Seconds OpenSSH waits for its connection.
PATIENCE = 30.0


@contextlib.contextmanager
def door(dial: Callable[[], socket.socket]) -> Iterator[Callable[[Target], list[str]]]:
    """Give the command with which OpenSSH gets connections that `dial` makes, while this lasts."""
    # Nobody else may enter the folder, and a socket's path is at most 107 bytes long.
    with (
        tempfile.TemporaryDirectory(prefix="essaim-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
    ):
        path = str(Path(folder, "door"))
        listener.bind(path)
        listener.listen(8)
        thread = threading.Thread(target=_serve, args=(listener, dial), name="essaim-door")
        thread.start()
        try:
            yield lambda _target: [sys.executable, "-I", __file__, path]
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
            thread.join()


def _serve(listener: socket.socket, dial: Callable[[], socket.socket]) -> None:
    while True:
        try:
            asked, _ = listener.accept()
        except OSError:
            return
        with asked:
            try:
                made = dial()
            except Exception as error:  # noqa: BLE001 - whatever it is, OpenSSH is to say it
                with contextlib.suppress(OSError):
                    asked.sendall(str(error).encode()[:1000])
                continue
            with made, contextlib.suppress(OSError):
                # Theirs from now on; what is set here is set there.
                made.settimeout(None)
                socket.send_fds(asked, [b"\0"], [made.fileno()])


def main() -> None:
    """`door.py PATH`: take a connection and pass it to whoever reads standard output."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(PATIENCE)
        asking.connect(sys.argv[1])
        said, descriptors, _, _ = socket.recv_fds(asking, 1024, 1)
    if not descriptors:
        sys.exit(said.decode(errors="replace") or "no connection could be made")
    with socket.socket(fileno=os.dup(1)) as out:
        socket.send_fds(out, [b"\0"], descriptors)


if __name__ == "__main__":
    main()
