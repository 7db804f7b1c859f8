"""What `check` says of the certificate that people are shown."""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from essaim.usecases import check

HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)
PATIENCE = 60.0


def certificate(folder: Path, before: dt.timedelta, after: dt.timedelta) -> Path:
    """Make one, with its key in the same file, that is good from and until so far from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "lab.test")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - before)
        .not_valid_after(now + after)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    kept = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = folder / "certificate.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + kept)
    return file


@pytest.fixture(autouse=True)
def patient(monkeypatch) -> None:
    """A busy machine may take its time over a handshake."""
    monkeypatch.setattr(check, "ANSWER_WITHIN", PATIENCE)


@pytest.fixture
def believed(tmp_path, monkeypatch) -> Callable[[dt.timedelta, dt.timedelta], Path]:
    """Make a certificate that this process trusts."""

    def make(before: dt.timedelta, after: dt.timedelta) -> Path:
        file = certificate(tmp_path, before, after)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        return file

    return make


@pytest.fixture
def shown() -> Iterator[Callable[[Path], str]]:
    """Show a certificate at an address, once."""
    threads = []

    def show(file: Path) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        server = socket.create_server(("127.0.0.1", 0))
        server.settimeout(PATIENCE)

        def one() -> None:
            with server, server.accept()[0] as sock:
                try:
                    with context.wrap_socket(sock, server_side=True) as wrapped:
                        wrapped.recv(1)
                except OSError:
                    pass  # it is not believed

        threads.append(threading.Thread(target=one))
        threads[-1].start()
        return f"https://127.0.0.1:{server.getsockname()[1]}"

    yield show
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    ("life", "ok", "text"),
    [
        ((DAY, 80 * DAY), True, "good for 80 days"),
        ((80 * DAY, 6 * DAY), False, "good for 6 days"),
        # A proxy's own authority gives such, and renews them in time.
        ((HOUR, 11 * HOUR), True, "good for 11 h"),
        ((11 * HOUR, HOUR), False, "good for 1 h"),
    ],
)
def test_a_certificate_is_good_for_long_enough(shown, believed, life, ok, text):
    file = believed(*life)
    (found,) = check.certificate(shown(file))
    assert (found.ok, found.text.partition(": ")[2]) == (ok, text)
    assert bool(found.hint) is not ok


def test_an_authority_that_is_not_known_is_said_so(shown, tmp_path):
    (found,) = check.certificate(shown(certificate(tmp_path, DAY, 80 * DAY)))
    assert not found.ok
    assert "self-signed" in found.text
    assert "SSL_CERT_FILE" in found.hint
