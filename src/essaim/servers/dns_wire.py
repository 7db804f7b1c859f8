"""Asks a DNS server, signed, and tells apart why it did not do as asked."""

from __future__ import annotations

import binascii
import contextlib
import socket
import time
from collections.abc import Iterator

import dns.exception
import dns.message
import dns.name
import dns.query
import dns.rcode
import dns.rdatatype
import dns.tsig
import dns.xfr
import dns.zone
from typing_extensions import override

from essaim.model.errors import EssaimError, RejectedError, TransientError
from essaim.servers.waiting import away

#: Seconds after which a packet counts as lost, and the question is asked over TCP.
_LOST = 2.0


class Wire:
    """The way to one server.  Thread-safe: it keeps no state but its key."""

    def __init__(
        self, *, server: str, port: int, within: float, key: str, secret: str, algorithm: str
    ) -> None:
        self.server, self.port, self.within = server, port, within
        try:
            self.key = dns.tsig.Key(key, secret, algorithm)
        except (binascii.Error, dns.exception.DNSException) as exc:
            raise RejectedError(
                f"the secret of the DNS key {key} is not in base 64",
                hint="give the text after `secret` that `tsig-keygen` printed, without quotes",
            ) from exc

    @override
    def __str__(self) -> str:
        return f"the DNS server {self.server} port {self.port}"

    def ask(self, message: dns.message.Message) -> dns.message.Message:
        """Ask over UDP, then over TCP.  The answer's signature was checked."""
        began = time.monotonic()
        with self._explained(began):
            address = self._address()
            try:
                answer = dns.query.udp(
                    message, address, timeout=min(_LOST, self.within), port=self.port
                )
                if not answer.flags & dns.flags.TC:
                    return answer
            except dns.exception.Timeout:
                pass
            left = max(0.1, self.within - (time.monotonic() - began))
            return dns.query.tcp(message, address, timeout=left, port=self.port)

    def transfer(self, zone: dns.name.Name) -> Iterator[tuple[str, str, str]]:
        """Every address and alias of a zone, in one transfer (AXFR): name, kind and value."""
        copy = dns.zone.Zone(zone, relativize=False)
        query, _ = dns.xfr.make_query(copy)
        query.use_tsig(self.key)
        with self._explained(time.monotonic()):
            try:
                dns.query.inbound_xfr(
                    self._address(), copy, query, port=self.port, lifetime=max(60.0, self.within)
                )
            except dns.xfr.TransferError as exc:
                raise refusal(self, exc.rcode, zone, "transfer") from exc
        for name, _, rdata in copy.iterate_rdatas():
            if rdata.rdtype in (dns.rdatatype.A, dns.rdatatype.AAAA, dns.rdatatype.CNAME):
                yield name.to_text(), dns.rdatatype.to_text(rdata.rdtype), rdata.to_text()

    def _address(self) -> str:
        found = socket.getaddrinfo(self.server, self.port, type=socket.SOCK_DGRAM)
        return str(found[0][4][0])

    @contextlib.contextmanager
    def _explained(self, began: float) -> Iterator[None]:
        """Make our errors of what can go wrong on the way."""
        try:
            yield
        except EssaimError:
            raise
        except (dns.exception.Timeout, EOFError) as exc:
            raise away(str(self), f"nothing in {time.monotonic() - began:.0f} s") from exc
        except OSError as exc:
            raise away(str(self), exc.strerror or exc) from exc
        except dns.exception.DNSException as exc:
            raise self._unsigned(exc) from exc

    def _unsigned(self, exc: dns.exception.DNSException) -> EssaimError:
        name = self.key.name.to_text(omit_final_dot=True)
        if isinstance(exc, dns.tsig.PeerBadKey):
            what, hint = f"does not know the key {name}", "compare dns.key with the server's keys"
        elif isinstance(exc, dns.tsig.PeerBadTime | dns.tsig.BadTime):
            what, hint = "has another time than this computer", "set both clocks by NTP"
        elif isinstance(exc, dns.tsig.PeerError | dns.tsig.BadSignature):
            what = f"knows another secret, or another algorithm, for the key {name}"
            hint = "compare dns.secret and dns.algorithm with the server's key"
        elif isinstance(exc, dns.exception.FormError) and "TSIG" in str(exc):
            what = f"does not sign its answers with the key {name}"
            hint = "it knows no such key, or another secret for it, or refuses this computer"
        else:
            return TransientError(f"{self} answers strangely: {exc}")
        return RejectedError(f"{self} {what}", hint=hint)


def refusal(wire: Wire, code: int, zone: dns.name.Name, verb: str) -> EssaimError:
    """What an answer other than yes means, and what to do about it."""
    name = zone.to_text(omit_final_dot=True)
    key = wire.key.name.to_text(omit_final_dot=True)
    said = dns.rcode.to_text(dns.rcode.Rcode(code))
    if code == dns.rcode.SERVFAIL:
        return TransientError(f"{wire} failed to {verb} {name} ({said})", hint="see its log")
    hints = {
        dns.rcode.REFUSED: f"let the key {key} {verb} the zone: allow-update, allow-transfer or "
        "update-policy of BIND; allow-dnsupdate-from and TSIG-ALLOW-… of PowerDNS",
        dns.rcode.NOTAUTH: "give the primary server of the zone as dns.server, or correct "
        "dns.zones; some servers say so of an unknown key too",
        dns.rcode.NOTIMP: "turn updates on (PowerDNS: dnsupdate=yes)",
        dns.rcode.NOTZONE: "correct dns.zones: a name is not inside its zone",
    }
    return RejectedError(
        f"{wire} refused to {verb} {name} ({said})",
        hint=hints.get(dns.rcode.Rcode(code), "see its log"),
    )
