"""Strangers who hold connections to the gateway, or fail there, keep nobody else out."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import subprocess
import time

import pytest

from drivers.lab import PATIENCE, wait_for
from essaim.gateway.attempts import Attempts
from essaim.gateway.gateway import Gateway
from gateway.rig import ACCOUNT, HOUR, Book, Route, new_key, public, running

NODE = "n-hidden"
#: As many as the gateway lets one address have waiting, and addresses for all that it has.
EACH, ADDRESSES = 100, 6


class Door:
    """A gateway that listens, and people with keys before it."""

    def __init__(self, place, attempts: Attempts | None = None) -> None:
        self.place = place
        self.book = Book()
        self.keys = {name: new_key(place / name) for name in ("node", "tenant", "stranger", "user")}
        self.book.node_keys[NODE] = public(self.keys["node"])
        self.book.leases[ACCOUNT] = Route(
            account=ACCOUNT, keys=(public(self.keys["tenant"]),), node="", address="",
            host_key="", expires_at=time.time() + HOUR,
        )  # fmt: skip
        self.gateway = Gateway(
            self.book, host_key=place / "host_key", login_keys=lambda: [self.keys["user"]],
            attempts=attempts, patience=0.0,
        )  # fmt: skip

    def enters(self, user: str, key: str, address: str) -> bool:
        """Log in with OpenSSH from an address; says whether the key was accepted."""
        words = [
            "ssh", "-v", "-N", "-F", "none", "-b", address, "-i", str(self.keys[key]),
            "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none",
            "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
            "-p", str(self.gateway.port), f"{user}@127.0.0.1",
        ]  # fmt: skip
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as client:
            try:
                return any("Authenticated to" in line for line in client.stderr)
            finally:
                client.kill()


@pytest.fixture
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_connections_that_are_held_keep_neither_nodes_nor_people_out(tmp_path):
    door = Door(tmp_path)
    with running(door.gateway), contextlib.ExitStack() as stack:
        greeted = 0
        for number in range(EACH * ADDRESSES):
            source = (f"127.0.1.{number % ADDRESSES + 1}", 0)
            at = ("127.0.0.1", door.gateway.port)
            held = socket.create_connection(at, PATIENCE, source_address=source)
            stack.enter_context(held)
            with contextlib.suppress(ConnectionError):
                greeted += held.recv(64).startswith(b"SSH-2.0-")  # it has a place, or has none
        assert greeted > EACH, "the strangers hold places"
        assert door.enters(f"node-{NODE}", "node", "127.0.9.1")
        assert door.enters(ACCOUNT, "tenant", "127.0.9.2")


def test_who_fails_beside_a_node_does_not_keep_it_out(tmp_path):
    door = Door(tmp_path, Attempts(3, every=1e9))
    with running(door.gateway):
        for _ in range(4):
            assert not door.enters(ACCOUNT, "stranger", "127.0.9.1")
        assert not door.enters(ACCOUNT, "tenant", "127.0.9.1"), "that address has to wait"
        for _ in range(3):
            assert door.enters(f"node-{NODE}", "node", "127.0.9.1")
        assert not door.enters(f"node-{NODE}", "stranger", "127.0.9.1")
        assert not door.enters("node-n-unknown", "node", "127.0.9.1")
        assert door.enters(ACCOUNT, "tenant", "127.0.9.2")


def test_places_held_in_a_nodes_name_do_not_keep_it_out(tmp_path):
    door = Door(tmp_path, Attempts(1, every=1e9))
    with running(door.gateway), contextlib.ExitStack() as stack:
        assert not door.enters(ACCOUNT, "stranger", "127.0.9.1")
        for _ in range(4):
            stack.enter_context(held_as_node(door, "127.0.9.1"))
        wait_for(lambda: door.enters(f"node-{NODE}", "node", "127.0.9.1"), "the node is in")


@contextlib.contextmanager
def held_as_node(door: Door, address: str):
    """A connection that names the node and then says no more."""
    words = [
        "ssh", "-v", "-N", "-F", "none", "-b", address, "-o", "PreferredAuthentications=publickey",
        "-i", str(door.keys["stranger"]), "-o", "StrictHostKeyChecking=no",
        "-o", "UserKnownHostsFile=/dev/null", "-o", "IdentityAgent=none",
        "-p", str(door.gateway.port), f"node-{NODE}@127.0.0.1",
    ]  # fmt: skip
    client = subprocess.Popen(words, stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    try:
        for line in client.stderr:
            if "Authentications that can continue" in line:
                client.send_signal(signal.SIGSTOP)
                break
        yield
    finally:
        client.kill()
        client.communicate(timeout=PATIENCE)
