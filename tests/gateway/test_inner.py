"""The inner door: only processes of the control plane come in, and only to nodes of the table."""

from __future__ import annotations

import socket
import threading

import pytest

from drivers.lab import PATIENCE
from essaim.gateway.gateway import Gateway
from essaim.model.errors import RejectedError, TransientError
from essaim.remote import inner
from essaim.remote.keyring import Keyring
from gateway.rig import Book, running

KEY = b"k" * 32
NODE = "n-1"


class Mates:
    """The other gateways, of which there are none."""

    own = "gateway-1"

    def keys(self) -> list[bytes]:
        return [b"new" * 10, KEY]

    def __init__(self) -> None:
        self.port = 0
        self.left = False

    def open(self, port: int) -> None:
        self.port = port

    def came(self, node): ...

    def went(self, node): ...

    def beat(self, nodes): ...

    def far(self, node):
        return None

    def leave(self) -> None:
        self.left = True


@pytest.fixture
def mates(tmp_path, monkeypatch):
    monkeypatch.setattr(inner, "PROVE_WITHIN", PATIENCE)  # this computer may be busy
    ring, made = Keyring(tmp_path), Mates()
    book = Book()
    book.node_keys[NODE] = ring.user_public_key()
    gateway = Gateway(
        book, host_key=ring.gateway_key(), login_keys=lambda: [ring.user_key()], mates=made
    )
    with running(gateway):
        yield made
    assert made.left


def dial(mates: Mates, **changes) -> socket.socket:
    told = {"gateway": mates.own, "node": inner.NOBODY, "key": KEY, "within": PATIENCE, **changes}
    return inner.dial_inner(("127.0.0.1", mates.port), **told)


def test_who_has_the_key_is_answered(mates):
    dial(mates).close()


def test_who_has_another_key_or_means_another_gateway_is_not(mates):
    for changes in ({"key": b"x" * 32}, {"gateway": "gateway-2"}):
        with pytest.raises(TransientError, match=r": no$"):
            dial(mates, **changes)


@pytest.mark.parametrize(
    ("node", "why"),
    [("n-2", "no node of ours"), (NODE, "no tunnel"), ("127.0.0.1:22", "no node of ours")],
)
def test_it_leads_only_to_nodes_that_have_a_tunnel_here(mates, node, why):
    with pytest.raises(TransientError, match=why):
        dial(mates, node=node)


def test_what_was_overheard_opens_nothing(mates):
    with socket.create_connection(("127.0.0.1", mates.port), PATIENCE) as first:
        theirs = first.makefile("rb").readline().split()[1]
        wish = (inner.NOBODY, inner.WORK)
        said = inner.request(KEY, mates.own, wish, theirs=theirs, ours=inner.new_nonce())
        first.sendall(said)
        assert first.makefile("rb").readline().startswith(b"ok ")
    with socket.create_connection(("127.0.0.1", mates.port), PATIENCE) as again:
        again.makefile("rb").readline()
        again.sendall(said)
        assert again.makefile("rb").readline() == b"no no\n"


@pytest.mark.parametrize(
    "said", [b"\n", b"x" * 2000, b"a b c d\n", b"\xff\n", b"GET / HTTP/1.1\r\n"]
)
def test_nonsense_is_shown_out(mates, said):
    with socket.create_connection(("127.0.0.1", mates.port), PATIENCE) as sock:
        sock.settimeout(PATIENCE)
        sock.makefile("rb").readline()
        sock.sendall(said)
        assert sock.makefile("rb").read().startswith(b"no ")


def test_a_stranger_at_the_address_is_not_believed():
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = server.getsockname()[:2]

        def answer() -> None:
            made, _ = server.accept()
            with made:
                made.sendall(inner.greeting(inner.new_nonce()))
                made.recv(inner.LONGEST)
                made.sendall(b"ok " + b"0" * 64 + b"\n")
                made.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(RejectedError, match="something else answers"):
            inner.dial_inner(at, gateway="g", node=NODE, key=KEY, within=PATIENCE)
        thread.join(PATIENCE)
