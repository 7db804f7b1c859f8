"""Large transfers and many clients do not make the gateway large."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import os
import subprocess
from pathlib import Path

import asyncssh

from drivers.lab import PATIENCE
from gateway.rig import ACCOUNT, finish, read_until, run, wait_for

MIB = 1024 * 1024
LARGE = 200 * MIB
#: What a process may grow by that relays one stream: buffers, not the stream.
GROWTH = 40 * MIB


class Memory:
    """How much this process, in which the gateway runs, has grown at most."""

    def __init__(self):
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what is used now
        self._before = self._read("VmRSS")

    def _read(self, what):
        lines = Path("/proc/self/status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith(what))
        return int(line.split()[1]) * 1024

    def growth(self):
        return self._read("VmHWM") - self._before


def settle(fleet, memory):
    """Wait until nothing more is taken in while nobody reads."""

    def settled():
        before = memory.growth()
        for _ in range(3):
            subprocess.run(fleet.words("true"), check=True, timeout=PATIENCE)
        return memory.growth() == before

    wait_for(settled, "nothing more is taken in")


def test_a_large_upload_is_streamed(fleet, tmp_path):
    big = tmp_path / "big"
    with big.open("wb") as file:
        for _ in range(LARGE // MIB // 4):
            file.write(os.urandom(MIB) * 4)
    with big.open("rb") as file:
        wanted = hashlib.file_digest(file, "sha256").hexdigest()
    memory = Memory()
    batch = f"put {big} big\n".encode()
    words = ["sftp", *fleet.options(), "-b", "-", f"{ACCOUNT}@gateway"]
    done = run(words, stdin=batch, patience=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    assert memory.growth() < GROWTH
    assert fleet.ssh("sha256sum big; rm big").stdout.split()[0].decode() == wanted


def test_a_large_download_to_a_slow_reader_waits_on_the_machine(fleet):
    memory = Memory()
    client = fleet.start(f"head -c {LARGE} /dev/zero")
    assert client.stdout is not None
    size = len(client.stdout.read(MIB))

    settle(fleet, memory)
    assert memory.growth() < GROWTH
    while piece := client.stdout.read(MIB):
        size += len(piece)
    assert size == LARGE
    assert memory.growth() < GROWTH
    assert finish(client)[0] == 0


def test_fifty_sessions_at_once(fleet):
    def one(number):
        client = fleet.start(f"echo ready; cat; echo done {number}")
        read_until(client, b"ready\n")
        return client

    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        clients = list(pool.map(one, range(50)))
        assert len(fleet.book.sessions) == 50
        assert not fleet.book.bytes
        ends = list(pool.map(finish, clients))
    assert [(code, out) for code, out, _ in ends] == [
        (0, f"done {number}\n".encode()) for number in range(50)
    ]
    wait_for(fleet.book.all_closed, "all are recorded as closed")


def test_a_client_with_a_huge_window_that_stops_reading_is_waited_for(fleet):
    """Some clients open a window of two gigabytes and leave the rest to TCP."""

    async def main():
        async with asyncssh.connect(
            "127.0.0.1", fleet.gateway.port, username=ACCOUNT, known_hosts=None, config=None,
            client_keys=[str(fleet.client_key)], agent_path=None,
        ) as connection:  # fmt: skip
            process = await connection.create_process(
                f"head -c {LARGE} /dev/zero", encoding=None, window=2**31 - 1
            )
            size = len(await process.stdout.readexactly(MIB))
            connection._transport.pause_reading()
            # What this client has taken in is no growth of the gateway.
            memory = Memory()
            await asyncio.to_thread(settle, fleet, memory)
            assert memory.growth() < GROWTH
            connection._transport.resume_reading()
            while piece := await process.stdout.read(MIB):
                size += len(piece)
            assert size == LARGE

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE))
