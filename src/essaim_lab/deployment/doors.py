"""Ports of this computer that lead into the engine's network: `python -m … FD:PORT …`.

Listens on sockets that it was given open, and connects from the network it was started in.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Mapping, Sequence

from essaim.model.errors import SetupError

HERE = "127.0.0.1"
PIECE = 1 << 16


def opened(port: int) -> socket.socket:
    """Listen on a port of the loopback interface; 0 is any that is free."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((HERE, port))
    except OSError as error:
        sock.close()
        hint = "end what listens there, or make down-cluster and begin anew"
        raise SetupError(f"port {port} of {HERE}: {error.strerror}", hint=hint) from error
    sock.listen(128)
    return sock


def command(doors: Mapping[int, socket.socket]) -> list[str]:
    """Give the command that passes on what comes to each socket to the port inside."""
    pairs = [f"{sock.fileno()}:{port}" for port, sock in doors.items()]
    return [sys.executable, "-m", __name__, *pairs]


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(PIECE):
        writer.write(data)
        await writer.drain()
    # The other side may still have something to say.
    writer.write_eof()


async def _serve(fd: int, port: int) -> None:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            inner_reader, inner_writer = await asyncio.open_connection(HERE, port)
            with contextlib.closing(inner_writer):
                await asyncio.gather(_pass(reader, inner_writer), _pass(inner_reader, writer))

    server = await asyncio.start_server(one, sock=socket.socket(fileno=fd))
    await server.serve_forever()


async def _main(words: Sequence[str]) -> None:
    pairs = [word.split(":") for word in words]
    await asyncio.gather(*(_serve(int(fd), int(port)) for fd, port in pairs))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
