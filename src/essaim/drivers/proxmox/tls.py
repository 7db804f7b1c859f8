"""How a cluster proves who it is: a certificate that an authority signed, or that is known."""

from __future__ import annotations

import hashlib
import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from requests.adapters import HTTPAdapter
from typing_extensions import override

from essaim.drivers.proxmox.settings import Settings
from essaim.model.errors import SetupError

_CONNECTIONS = 32


def verifying(settings: Settings) -> HTTPAdapter:
    """What checks the certificate of each connection, as the site says."""
    if settings.fingerprint:
        return _Pinned(settings.fingerprint)
    return _Trusting(_context(settings))


def shown_certificate(url: str, seconds: float) -> bytes:
    """The certificate a server shows, in DER, believed by nobody; OSError when it does not."""
    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it is only looked at
    address = (parts.hostname or "", parts.port or 443)
    with (
        socket.create_connection(address, timeout=seconds) as plain,
        context.wrap_socket(plain, server_hostname=parts.hostname) as secure,
    ):
        return secure.getpeercert(binary_form=True) or b""


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate as people compare it: pairs of digits with colons."""
    digest = hashlib.sha256(certificate).hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, len(digest), 2))


class _Pinned(HTTPAdapter):
    """Believes one certificate, whoever signed it and whatever name it has."""

    def __init__(self, fingerprint: str) -> None:
        self._fingerprint = fingerprint
        super().__init__(pool_maxsize=_CONNECTIONS)

    @override
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the fingerprint is compared instead
        super().init_poolmanager(
            *args,
            **kwargs,
            ssl_context=context,
            assert_fingerprint=self._fingerprint,
            assert_hostname=False,
        )

    @override
    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """Leave it to the fingerprint."""


class _Trusting(HTTPAdapter):
    """Believes what one authority has signed, read once."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__(pool_maxsize=_CONNECTIONS)

    @override
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, ssl_context=self._context)

    @override
    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """The context has the authority already."""


def _context(settings: Settings) -> ssl.SSLContext:
    try:
        if "-----BEGIN" in settings.ca:
            return ssl.create_default_context(cadata=settings.ca)
        return ssl.create_default_context(cafile=str(Path(settings.ca).expanduser()))
    except (OSError, ssl.SSLError) as error:
        raise SetupError(
            f"site {settings.site}: its authority {settings.ca} cannot be read: {error}",
            hint="ca: a copy of /etc/pve/pve-root-ca.pem of any node",
        ) from error


def untrusted(url: str, error: Exception) -> SetupError:
    """The error for a server whose certificate is not the right one."""
    return SetupError(
        f"{url} is not who it should be: {_why(error)}",
        hint="ca: a copy of /etc/pve/pve-root-ca.pem, and the name in url as in its certificate",
    )


def _why(error: BaseException) -> str:
    """Why a certificate was not believed, without names of classes."""
    if "Fingerprints did not match" in str(error):
        return "its certificate has another fingerprint than the site's file says"
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, ssl.SSLCertVerificationError):
            return found.verify_message
        found = found.__cause__ or found.__context__
    return str(error)
