"""Names in a DNS server that takes updates (RFC 2136) signed with a key (TSIG).

    dns:
      kind: rfc2136
      server: ns1.example.org
      zones: [school.example.org, 0.77.10.in-addr.arpa]
      key: essaim
      secret: {env: DNS_KEY}

BIND, PowerDNS and Knot take them.  Every change is one message for each zone, which the server
carries out whole or not at all, and only if the names in it are free or already ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.update

from essaim.model.errors import ClashError, RejectedError, TakenError, TransientError
from essaim.servers.dns_wire import Wire, refusal
from essaim.servers.zones import Record, is_reverse, plain, records

if TYPE_CHECKING:
    from essaim.model.school import Host

#: How often two who name the same host at once may cross each other.
_TRIES = 4
_HELD = (dns.rcode.YXDOMAIN, dns.rcode.YXRRSET, dns.rcode.NXRRSET, dns.rcode.NXDOMAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where names are kept, and the key that may change them."""

    server: str
    zones: Sequence[str]
    key: str
    secret: str = field(repr=False)  #: in base 64, as `tsig-keygen` prints it
    algorithm: str = "hmac-sha256"
    port: int = 53
    ttl: int = 300
    within: float = 8.0  #: seconds for one question and its answer


class Rfc2136:
    """Names of one server.  Keeps nothing open: an update is one packet there and one back."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._wire = Wire(
            server=settings.server,
            port=settings.port,
            within=settings.within,
            key=settings.key,
            secret=settings.secret,
            algorithm=settings.algorithm,
        )

    def name(self, host: Host) -> None:
        """Make its address, alias and reverse records.

        TakenError when one of the names leads elsewhere, ClashError when the address leads to
        another name; then none of them was made.
        """
        done: list[Record] = []
        for inside in self._sorted(host):
            try:
                done += self._add(inside)
            except RejectedError:
                for zone in {record.zone for record in done}:
                    self._remove([record for record in done if record.zone == zone])
                raise

    def unname(self, host: Host) -> None:
        """Remove its records.  Nothing if they are gone, or belong to another address now."""
        first, *others = self._sorted(host)
        if self._yield(first):
            for inside in others:
                self._remove(inside)

    def named(self) -> Mapping[str, str]:
        """The address of every name of the zones, aliases too; each zone is transferred whole."""
        found: dict[str, str] = {}
        aliases: dict[str, str] = {}
        for zone in self._settings.zones:
            if is_reverse(zone):
                continue
            for name, kind, value in self._wire.transfer(dns.name.from_text(zone)):
                if kind == "CNAME":
                    aliases[plain(name)] = plain(value)
                elif kind == "A" or plain(name) not in found:
                    found[plain(name)] = value
        led = {alias: found[target] for alias, target in aliases.items() if target in found}
        return {**found, **led}

    def _sorted(self, host: Host) -> list[list[Record]]:
        """Its records by zone, that of its own name first."""
        zones: dict[str, list[Record]] = {}
        for record in records(host, self._settings.zones):
            zones.setdefault(record.zone, []).append(record)
        return list(zones.values())

    def _add(self, wanted: list[Record]) -> list[Record]:
        """Add what is missing of a zone in one update; says what that was."""
        missing = wanted
        for _ in range(_TRIES):
            update = self._update(wanted)
            for record in wanted:
                name = dns.name.from_text(record.name)
                if record in missing:
                    update.absent(name)
                    update.add(name, self._settings.ttl, record.kind, _text(record))
                else:
                    update.present(name, record.kind, _text(record))
            if self._sent(update):
                return missing
            before, missing = missing, [record for record in wanted if not self._there(record)]
            if missing == before:
                self._blame(missing)
            if not missing:
                return []
        raise TransientError(
            f"{wanted[0].name} changed {_TRIES} times while it was being named",
            hint="somebody else changes the same name: see who, then try again",
        )

    def _yield(self, gone: list[Record]) -> bool:
        """Remove the records if their name is this host's, or nobody's; says whether it was."""
        own = gone[0]
        name = dns.name.from_text(own.name)
        update = self._update(gone)
        update.present(name, own.kind, _text(own))
        self._delete(update, gone)
        if self._sent(update):
            return True
        # Its aliases may have outlived it.
        update = self._update(gone)
        update.absent(name, "A")
        update.absent(name, "AAAA")
        self._delete(update, gone)
        return self._sent(update)

    def _remove(self, gone: list[Record]) -> None:
        update = self._update(gone)
        self._delete(update, gone)
        self._sent(update)

    @staticmethod
    def _delete(update: dns.update.UpdateMessage, gone: list[Record]) -> None:
        for record in gone:
            # With its value: a record that leads elsewhere stays.
            update.delete(dns.name.from_text(record.name), record.kind, _text(record))

    def _update(self, about: list[Record]) -> dns.update.UpdateMessage:
        update = dns.update.UpdateMessage(dns.name.from_text(about[0].zone))
        update.use_tsig(self._wire.key)
        return update

    def _sent(self, update: dns.update.UpdateMessage) -> bool:
        """Send an update; False when what it supposes is not so, and nothing was changed."""
        code = self._wire.ask(update).rcode()
        if code == dns.rcode.NOERROR:
            return True
        if code in _HELD:
            return False
        raise refusal(self._wire, code, update.zone[0].name, "update")

    def _there(self, record: Record) -> bool:
        """Whether exactly that record is there.  TakenError when another is in its place."""
        values = self._values(record)
        if not values:
            return False
        if values == {record.value}:
            return True
        raise _taken(record, values)

    def _values(self, record: Record) -> set[str]:
        """What the name is now, as far as it matters to the record."""
        name = dns.name.from_text(record.name)
        question = dns.message.make_query(name, record.kind)
        question.flags &= ~dns.flags.RD
        question.use_tsig(self._wire.key)
        answer = self._wire.ask(question)
        if answer.rcode() not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
            raise refusal(self._wire, answer.rcode(), name, "answer for")
        return {
            plain(rdata.to_text())
            for rrset in answer.answer
            if rrset.name == name
            for rdata in rrset
        }

    def _blame(self, missing: list[Record]) -> None:
        """Find which name is held by records of other kinds than those we make.

        When none is, another try helps: somebody made and removed it meanwhile.
        """
        for record in missing:
            for kind in ("A", "AAAA", "CNAME", "TXT", "MX", "NS", "SRV", "PTR"):
                if kind != record.kind and (held := self._values(replace(record, kind=kind))):
                    raise _taken(record, held, f" ({kind})")


def _text(record: Record) -> str:
    """Its value as the library reads it."""
    return record.value if record.kind in ("A", "AAAA") else f"{record.value}."


def _taken(record: Record, values: set[str], kind: str = "") -> TakenError:
    held = " and ".join(sorted(values))
    error = ClashError if record.kind == "PTR" else TakenError
    return error(
        f"{record.name} is {held}{kind} already, not {record.value}",
        hint="choose another name, or remove that record if nobody needs it",
    )
