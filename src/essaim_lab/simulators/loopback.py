"""HTTPS servers that exist for an hour, on the loopback, with certificates of their own."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import ssl
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from typing_extensions import override

from essaim.cli.signals import ENDING, acting


def make_certificate(folder: Path) -> ssl.SSLContext:
    """Make a certificate for the loopback; `folder/ca.pem` is what clients verify it by."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Essaim simulator")])
    now = dt.datetime.now(dt.UTC)
    alternatives: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    ca, private = folder / "ca.pem", folder / "key.pem"
    ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.touch(mode=0o600)
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca, private)
    return context


@dataclass(frozen=True, slots=True)
class Served:
    """Where a server is, and the certificate to verify it by."""

    port: int
    ca: Path

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"https://127.0.0.1:{self.port}"


class Handler(BaseHTTPRequestHandler):
    """Answers for a simulator, each answer in one packet; connections are kept."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # a whole answer in one packet
    simulator: Any  #: whom it answers for

    def read(self) -> bytes:
        """What was sent along with the question."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def give(self, status: int, body: bytes, kind: str = "application/json") -> None:
        """Answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: passwords and tokens are in the requests."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    @override
    def handle_error(self, _request: Any, _client: Any) -> None:
        """Clients may hang up whenever they like."""


@contextlib.contextmanager
def serving(handler: type[Handler], simulator: object, port: int = 0) -> Iterator[Served]:
    """Serve a simulator on the loopback until the end of the block; port 0 is any free one."""
    handler = type("Handler", (handler,), {"simulator": simulator})
    with tempfile.TemporaryDirectory(prefix="essaim-simulator-") as name:
        server = _Server(("127.0.0.1", port), handler)
        # The handshake is left to the thread of the connection: a slow client holds up nobody.
        server.socket = make_certificate(Path(name)).wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield Served(int(server.server_address[1]), Path(name) / "ca.pem")
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def until_told() -> None:
    """Return when this process is asked to end."""
    told = threading.Event()
    with acting(told.set, *ENDING):
        told.wait()
