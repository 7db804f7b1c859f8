"""What a command sends is sent once; a connection that did not come about is made again."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus

import pytest

from essaim.cli.client import Client, UnreachableError
from essaim.cli.session import Kept
from essaim_lab.simulators.loopback import make_certificate

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
#: Caddy's answer when it has no server to pass a request to; the API's own has a body.
NOBODY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
BUSY = NOBODY.replace(b"Length: 0", b"Length: 2") + b"{}"
RESET = struct.pack("ii", 1, 0)  #: to linger for no time: whoever is connected is cut off


@contextmanager
def serving(folder, *treatments: Callable) -> Iterator[tuple[str, list[bytes]]]:
    """Serve TLS, one connection after another, each in its own way; give what was sent, too."""
    context, heard = make_certificate(folder), []

    def serve() -> None:
        for treat in treatments:
            with closing(listening.accept()[0]) as connection:
                treat(connection, context, heard)

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listening.getsockname()[1]}", heard
        thread.join()


def breaks(connection, _context, _heard) -> None:
    """As a proxy that loads its configuration: in the handshake, so that nothing has been sent."""
    # Its first word is waited for: a connection that is cut before Python wraps it in TLS is left
    # by Python for the garbage collector to close, which warns.
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def dies(connection, context, heard) -> None:
    """As a server that is killed with a request under way."""
    with context.wrap_socket(connection, server_side=True) as talk:
        heard.append(talk.recv(1 << 16))
        talk.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def answers_with(answer: bytes) -> Callable:
    def treat(connection, context, heard) -> None:
        with context.wrap_socket(connection, server_side=True) as talk:
            heard.append(talk.recv(1 << 16))
            talk.sendall(answer)

    return treat


answers = answers_with(ANSWER)


def send(address: str, folder) -> int:
    client = Client(Kept(server=address, ca=str(folder / "ca.pem")))
    with closing(client):
        return client.send("POST", "/api/rent", content=b"").status_code


def test_what_could_not_be_sent_is_sent_over_another_connection(tmp_path):
    with serving(tmp_path, breaks, answers) as (address, heard):
        assert send(address, tmp_path) == HTTPStatus.OK
    assert len(heard) == 1


def test_what_was_sent_is_not_sent_again(tmp_path):
    with serving(tmp_path, dies) as (address, heard), pytest.raises(UnreachableError):
        send(address, tmp_path)
    assert len(heard) == 1


def test_a_server_that_breaks_every_connection_is_given_up(tmp_path):
    with serving(tmp_path, breaks, breaks) as (address, heard), pytest.raises(UnreachableError):
        send(address, tmp_path)
    assert heard == []


def test_what_a_proxy_had_no_server_for_is_sent_once_more(tmp_path):
    with serving(tmp_path, answers_with(NOBODY), answers) as (address, heard):
        assert send(address, tmp_path) == HTTPStatus.OK
    assert len(heard) == 2


def test_what_the_server_itself_refused_is_not_sent_again(tmp_path):
    with serving(tmp_path, answers_with(BUSY)) as (address, heard):
        assert send(address, tmp_path) == HTTPStatus.SERVICE_UNAVAILABLE
    assert len(heard) == 1
