"""The Docker engine that a deployment is looked at in: nothing of the host is changed by it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from databases import find
from essaim_lab.deployment import doors
from essaim_lab.deployment.engine import NEEDED, Docker

PATIENCE = 120.0
#: Answers whoever comes to a port of the engine's network with what that network has.
ANSWER = """
import os, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    with server.accept()[0] as sock:
        sock.sendall(" ".join(name for _, name in socket.if_nameindex()).encode())
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a Docker engine needs root")


def eventually(look: Callable[[], object], what: str) -> object:
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.1)
    return found


def links() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def answer(port: int) -> str:
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), PATIENCE) as sock,
    ):
        # Nothing more to say, and yet something to hear.
        sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(1024), b"")).decode()
    return ""


@pytest.fixture(scope="module")
def docker(tmp_path_factory) -> Iterator[Docker]:
    for program, package in NEEDED.items():
        find(program, package)
    # The path of a Unix socket may not be long.
    engine = Docker(tmp_path_factory.mktemp("engine") / "e")
    try:
        assert engine.start() is True
        yield engine
    finally:
        engine.stop()


def test_it_is_started_once(docker):
    assert docker.start() is False


def test_its_networks_are_not_the_hosts_and_a_door_leads_there(docker):
    key = docker.run("network", "create", "inside").strip()
    bridge = f"br-{key[:12]}"
    assert bridge not in links()
    with doors.opened(0) as sock:
        port = sock.getsockname()[1]
        docker.beside(doors.command({7000: sock}), [sock.fileno()])
    docker.beside([sys.executable, "-c", ANSWER, "7000"])
    found = eventually(lambda: answer(port), "an answer through the door")
    assert bridge in found.split()


def test_a_port_that_is_taken_is_named():
    with doors.opened(0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(doors.SetupError, match=f"port {port}"):
            doors.opened(port)


def test_whatever_happens_to_it_nothing_is_left(docker):
    """Comes last: it is killed, which takes its network, doors and mounts with it."""
    mine = docker.inner()
    assert docker.left()
    os.kill(mine, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{mine}").exists(), "its end")
    docker.stop()
    assert docker.left() == []
    docker.stop()  # and again
