"""Asks an LDAP server, always in TLS, and tells apart why it did not answer."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from typing_extensions import override

from essaim.model.errors import EssaimError, RejectedError, SetupError, TransientError
from essaim.servers.ldap_library import ldap3, wrong
from essaim.servers.waiting import away

_PAGE = 500


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the directory, with the attributes that were asked for."""

    dn: str
    attributes: dict[str, list[str]]  #: by name in lower case

    def all(self, name: str) -> list[str]:
        """Every value of an attribute."""
        return self.attributes.get(name.lower(), [])

    def first(self, name: str) -> str:
        """The first value of an attribute; empty when there is none."""
        return next(iter(self.all(name)), "")

    def number(self, name: str) -> int:
        """The value as a number; 0 when it is none."""
        text = self.first(name)
        return int(text) if text.lstrip("-").isdigit() else 0

    @property
    def kinds(self) -> set[str]:
        """Its object classes, in lower case."""
        return {kind.lower() for kind in self.all("objectClass")}


class Wire:
    """The way to one directory; `open` gives one with a connection, for one thread."""

    def __init__(
        self, *, url: str, base: str, user: str, secret: str, ca: str, within: float
    ) -> None:
        self._url, self._base, self._user, self._secret = url, base, user, secret
        self._within = within
        parts = urlsplit(url)
        self._server = ldap3.Server(
            parts.hostname or "",
            port=parts.port or (636 if parts.scheme == "ldaps" else 389),
            use_ssl=parts.scheme == "ldaps",
            tls=_Tls(_trust(ca)),
            get_info=ldap3.NONE,
            connect_timeout=within,
        )
        self._connection: Any = None

    @override
    def __str__(self) -> str:
        return f"the directory {self._url}"

    @contextlib.contextmanager
    def open(self) -> Iterator[Wire]:
        """Connect, begin TLS, and log in; closed at the end of the block."""
        other = object.__new__(Wire)
        other.__dict__.update(self.__dict__)
        with self._explained():
            other._connection = self._connect()
            try:
                yield other
            finally:
                other._connection.unbind()

    def search(self, which: str, read: Sequence[str]) -> Iterator[Entry]:
        """Every entry below the base that a filter fits, however many they are."""
        return self._paged(self._base, which, read, ldap3.SUBTREE)

    def at(self, dn: str, which: str, read: Sequence[str]) -> Iterator[Entry]:
        """The entry of that DN, if the filter fits it."""
        try:
            yield from self._paged(dn, which, read, ldap3.BASE)
        except wrong.LDAPNoSuchObjectResult:
            return

    def _connect(self) -> Any:
        connection = ldap3.Connection(
            self._server,
            user=self._user or None,
            password=self._secret or None,
            receive_timeout=max(1, round(self._within)),  # a whole number, by its C structure
            auto_referrals=False,
            check_names=False,
            read_only=True,
            raise_exceptions=True,
        )
        try:
            connection.open()
            if not self._server.ssl:
                connection.start_tls()
            connection.bind()
        except BaseException:
            if connection.socket is not None:
                connection.socket.close()
            raise
        return connection

    def _paged(self, base: str, which: str, read: Sequence[str], scope: Any) -> Iterator[Entry]:
        found = self._connection.extend.standard.paged_search(
            base, which, search_scope=scope, attributes=list(read), paged_size=_PAGE
        )
        for answer in found:
            if answer["type"] == "searchResEntry":
                yield Entry(
                    answer["dn"],
                    {
                        name.lower(): [value.decode(errors="replace") for value in values]
                        for name, values in answer["raw_attributes"].items()
                    },
                )

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Make our errors of what can go wrong on the way."""
        try:
            yield
        except (wrong.LDAPException, OSError) as exc:
            raise self._meaning(exc) from exc

    def _meaning(self, exc: Exception) -> EssaimError:
        said = " ".join(str(exc).split())
        if "CERTIFICATE_VERIFY_FAILED" in said or isinstance(exc, wrong.LDAPCertificateError):
            return RejectedError(
                f"{self} shows a certificate that does not prove who it is: {said}",
                hint="give the certificate of whoever signed it as directory.ca, and the "
                "server's name as its certificate has it in directory.url",
            )
        for kind, what, hint in _REFUSALS:
            if isinstance(exc, kind):
                return RejectedError(f"{self} {what}", hint=hint)
        if isinstance(exc, wrong.LDAPCommunicationError | wrong.LDAPStartTLSError | OSError):
            return away(str(self), said)
        return TransientError(f"{self} did not answer as it should: {said}", hint="see its log")


class _Tls(ldap3.Tls):
    """TLS as Python itself does it: the name is checked, and a time limit holds for it too."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(validate=ssl.CERT_REQUIRED)
        self._context = context

    @override
    def wrap_socket(self, connection: Any, do_handshake: bool = False) -> None:
        """Put TLS on a connection."""
        connection.socket = self._context.wrap_socket(
            connection.socket,
            server_hostname=connection.server.host,
            do_handshake_on_connect=do_handshake,
        )


def _trust(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca or None)
    except OSError as exc:
        raise SetupError(
            f"the certificate {ca} cannot be read: {exc.strerror or exc}",
            hint="directory.ca is the path of a file in PEM format",
        ) from exc


_REFUSALS: tuple[tuple[type[Exception], str, str], ...] = (
    (
        wrong.LDAPInvalidCredentialsResult,
        "does not let us in",
        "compare directory.user and directory.secret",
    ),
    (
        wrong.LDAPInsufficientAccessRightsResult,
        "lets our account read nothing there",
        "let the account of directory.user read people and groups",
    ),
    (
        wrong.LDAPNoSuchObjectResult,
        "has nothing at directory.base, or hides it from our account",
        "correct directory.base, or let the account of directory.user read it",
    ),
    (
        wrong.LDAPSizeLimitExceededResult,
        "gives no more answers to our account",
        "let the account of directory.user read in pages without an end (size.prtotal=unlimited)",
    ),
    (
        wrong.LDAPInvalidDNSyntaxResult,
        "cannot read a DN of ours",
        "correct directory.base and user",
    ),
    (wrong.LDAPInappropriateAuthenticationResult, "wants a password", "give directory.secret"),
    (wrong.LDAPPasswordIsMandatoryError, "wants a password", "give directory.secret"),
    (wrong.LDAPUnwillingToPerformResult, "is unwilling", "see its log"),
)
