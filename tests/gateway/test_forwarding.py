"""Ports of the machine's own loopback, when the policy allows; nothing else."""

from __future__ import annotations

import socket
import time

import pytest

from drivers.lab import PATIENCE
from essaim_lab.computer import free_port
from gateway.rig import finish, wait_for

# Answers with what it was sent, in upper case, once the sender is done.
SERVER = """
import socket
with socket.socket() as door:
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.bind(("127.0.0.1", 7070))
    door.listen()
    while True:
        with door.accept()[0] as guest:
            guest.sendall(b"".join(iter(lambda: guest.recv(65536), b"")).upper())
"""


@pytest.fixture(scope="module")
def shouting(machines):
    """A server on the first machine's loopback."""
    lab, names = machines
    lab.run(names[0], f"cat >/root/shout.py <<'E'\n{SERVER}\nE\n")
    lab.run(names[0], "setsid python3 /root/shout.py >/dev/null 2>&1 </dev/null &")
    ready = "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 7070))'"
    wait_for(lambda: lab.ssh(names[0], ready).returncode == 0, "the server listens")


def talk(port: int, text: bytes) -> bytes:
    """Send, say that this was all, and give the answer; empty when it was refused."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), PATIENCE) as sock:
                sock.sendall(text)
                sock.shutdown(socket.SHUT_WR)
                return b"".join(iter(lambda: sock.recv(65536), b""))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        except ConnectionError:
            return b""


def forwarded(fleet, to: str, text: bytes) -> tuple[bytes, bytes]:
    port = free_port()
    client = fleet.start("cat", flags=["-L", f"127.0.0.1:{port}:{to}"])
    try:
        return talk(port, text), finish(client)[2]
    finally:
        client.kill()
        client.wait()


@pytest.mark.usefixtures("shouting")
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_port_of_the_machine_is_reached_when_the_policy_allows(fleet, host):
    fleet.book.change(forwarding=True)
    text = b"hello\n" * 100_000
    answer, _ = forwarded(fleet, f"{host}:7070", text)
    assert answer == text.upper()


@pytest.mark.usefixtures("shouting")
def test_the_policy_can_forbid_it(fleet):
    answer, said = forwarded(fleet, "localhost:7070", b"hello")
    assert answer == b""
    assert b"administratively prohibited: this lease has no port forwarding" in said


@pytest.mark.parametrize("host", ["10.77.0.12", "10.77.0.11", "example.org", "0.0.0.0", "m2"])
def test_no_other_machine_is_reached(fleet, host):
    fleet.book.change(forwarding=True)
    answer, said = forwarded(fleet, f"{host}:22", b"")
    assert answer == b""
    assert b"administratively prohibited" in said


def test_a_port_nobody_listens_on_is_refused(fleet):
    fleet.book.change(forwarding=True)
    answer, said = forwarded(fleet, "localhost:9", b"")
    assert answer == b""
    assert b"connect failed" in said


def test_clients_get_no_remote_forwarding(fleet):
    fleet.book.change(forwarding=True)
    done = fleet.ssh("true", flags=["-R", "0:localhost:22"], ExitOnForwardFailure="yes")
    assert done.returncode == 255
    assert b"remote port forwarding failed" in done.stderr


def test_clients_get_no_sockets_and_no_networks(fleet):
    fleet.book.change(forwarding=True)
    listening = fleet.ssh(
        "true", flags=["-R", "/tmp/evil:localhost:22"], ExitOnForwardFailure="yes"
    )
    assert listening.returncode == 255
    assert fleet.ssh("true", flags=["-W", "10.77.0.12:22"]).returncode == 255
