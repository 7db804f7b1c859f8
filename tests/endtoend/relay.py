"""Lets tests into a network of machines: `relay.py ADDRESS FD:PORT[,PORT…] …`, run in there.

Each inherited socket leads to the first of its ports that answers, as a proxy before replicas does.
"""

from __future__ import annotations

import asyncio
import socket
import sys


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


async def lead(address: str, ports: list[int], near: tuple) -> None:
    for port in ports:
        try:
            far = await asyncio.open_connection(address, port)
        except OSError:
            continue
        await asyncio.gather(pump(near[0], far[1]), pump(far[0], near[1]))
        far[1].close()
        break
    near[1].close()


async def main(address: str, *ways: str) -> None:
    servers = []
    for way in ways:
        number, _, ports = way.partition(":")
        wanted = [int(port) for port in ports.split(",")]
        servers.append(
            await asyncio.start_server(
                lambda *near, wanted=wanted: lead(address, wanted, near),
                sock=socket.socket(fileno=int(number)),
            )
        )
    await asyncio.gather(*(server.serve_forever() for server in servers))


asyncio.run(main(*sys.argv[1:]))
