"""A database server whose computer goes without a word counts as away, and waits end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from patience import in_test_all
from servers import network

PORT = 5000
CLIENT = "10.77.0.2"

#: Opens a door in the network it is started in, and hands it to whoever started it.
DOOR = f"""
import socket
own = socket.create_server(("{network.SERVER}", {PORT}))
with socket.socket(fileno=0) as line:
    socket.send_fds(line, [b"door"], [own.fileno()])
"""

#: Asks for an answer that takes longer than the server lives.
ASKS = """
import sys
import sqlalchemy as sa
from essaim.model.errors import StoreAwayError
from essaim.store.database import open_database

url, question = sys.argv[1:]
database = open_database(url)
database.read(lambda connection: connection.execute(sa.text("SELECT 1")))
print("connected", flush=True)
try:
    database.read(lambda connection: connection.execute(sa.text(question)))
except StoreAwayError as error:
    print(error.what)
"""
LONG = {"mariadb": "SELECT SLEEP(3600)", "postgresql": "SELECT pg_sleep(3600)"}


@pytest.fixture
def away() -> Iterator[network.Network]:
    """A network in which the database can be reached, through a cable."""
    if os.geteuid() != 0:
        pytest.skip("a network of its own needs root")
    with network.network() as made:
        subprocess.run(made.at_client(["ip", "link", "set", "lo", "up"]), check=True)
        own = ["ip", "address", "add", f"{CLIENT}/24", "dev", "card"]
        subprocess.run(made.at_client(own), check=True)
        yield made


def door(away: network.Network) -> socket.socket:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        words = away.at_server([sys.executable, "-c", DOOR])
        with subprocess.Popen(words, stdin=theirs) as opening:
            _, (number,), *_ = socket.recv_fds(ours, 4, 1)
        assert opening.returncode == 0
    return socket.socket(fileno=number)


def pass_on(one: socket.socket, other: socket.socket) -> None:
    while said := one.recv(65536):
        other.sendall(said)


@in_test_all
@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
def test_whoever_waits_for_its_answer_is_told(kind, servers, away):
    url = sa.make_url(servers(kind).new())
    reached = url.set(host=network.SERVER, port=PORT).render_as_string(hide_password=False)
    words = away.at_client([sys.executable, "-c", ASKS, reached, LONG[kind]])
    with door(away) as listening:
        asking = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        near, _ = listening.accept()
        far = socket.create_connection(("127.0.0.1", url.port))
        with near, far:
            for pair in ((near, far), (far, near)):
                threading.Thread(target=pass_on, args=pair, daemon=True).start()
            try:
                assert asking.stdout.readline() == "connected\n"
                cut = away.at_server(["ip", "link", "set", "served", "down"])
                subprocess.run(cut, check=True)
                said, _ = asking.communicate(timeout=150)
            finally:
                asking.kill()
                asking.wait()
            for end in (near, far):
                end.shutdown(socket.SHUT_RDWR)
    assert "no answer in" in said
