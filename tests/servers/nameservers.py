"""Real name servers with a key that may change their zones, and one that may not."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import dns.message
import dns.query

from databases import find, free_port
from essaim.servers.dns import Settings
from servers import daemons

SECRET = "c2VjcmV0LW9mLXRoZS1sYWItMDEyMzQ1Njc4OWFiY2RlZg=="
OTHER = "YW5vdGhlci1zZWNyZXQtb2YtdGhlLWxhYi0wMTIzNDU2Nzg="
FORWARD, BACK, BACK6 = "school.example.org", "0.77.10.in-addr.arpa", "0.0.d.f.ip6.arpa"
ZONES = (FORWARD, BACK, BACK6)

ZONE = """$TTL 300
@ IN SOA ns.example.org. admin.example.org. 1 3600 600 86400 60
@ IN NS ns.example.org.
"""
TAKEN = """www IN A 10.77.0.200
mail IN MX 10 www
"""
USUAL = {zone: TAKEN if zone == FORWARD else "" for zone in ZONES}
LOCKED = "locked.example.org"


def answers(port: int, zone: str = FORWARD) -> bool:
    question = dns.message.make_query(zone, "SOA")
    with contextlib.suppress(OSError, dns.exception.DNSException):
        return dns.query.udp(question, "127.0.0.1", timeout=1, port=port).rcode() == 0
    return False


def look(port: int, name: str, kind: str) -> set[str]:
    """What anybody who asks the server is told."""
    answer = dns.query.tcp(
        dns.message.make_query(name, kind), "127.0.0.1", daemons.PATIENCE, port=port
    )
    return {rdata.to_text() for rrset in answer.answer for rdata in rrset}


def settings(port: int) -> Settings:
    return Settings(
        server="127.0.0.1",
        port=port,
        zones=ZONES,
        key="essaim",
        secret=SECRET,
        within=daemons.PATIENCE,
    )


@contextlib.contextmanager
def bind(zones: Mapping[str, str] = USUAL) -> Iterator[Settings]:
    """A real BIND with these zones and what they begin with, and one nobody may change."""
    program = find("named", "bind9")
    user = "bind" if os.geteuid() == 0 else "root"
    with daemons.folder(user) as place:
        port = free_port()
        write_bind(place, port, zones)
        ready = lambda: answers(port, min(zones))  # noqa: E731 - a question, not a function
        words = [program, "-f", "-c", place / "named.conf", "-n", "1"]
        with daemons.running([*words, *(["-u", user] if user == "bind" else [])], place, ready):
            yield replace(settings(port), zones=tuple(zones))


def write_bind(place: Path, port: int, zones: Mapping[str, str]) -> None:
    told = ""
    for zone, lines in {**zones, LOCKED: ""}.items():
        (place / zone).write_text(ZONE + lines)
        os.chmod(place / zone, 0o666)
        allowed = "none;" if zone == LOCKED else "key essaim;"
        told += (
            f'zone "{zone}" {{ type primary; file "{place / zone}";'
            f" allow-update {{ {allowed} }}; allow-transfer {{ {allowed} }}; }};\n"
        )
    (place / "named.conf").write_text(f"""
key essaim {{ algorithm hmac-sha256; secret "{SECRET}"; }};
options {{
  directory "{place}"; pid-file "{place}/pid"; session-keyfile none; recursion no;
  listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }};
  dnssec-validation no; notify no; allow-query {{ any; }};
}};
controls {{}};
{told}""")


@contextlib.contextmanager
def powerdns() -> Iterator[Settings]:
    program = find("pdns_server", "pdns-server")
    schema = Path("/usr/share/pdns-backend-sqlite3/schema/schema.sqlite3.sql")
    find(str(schema), "pdns-backend-sqlite3")
    with daemons.folder() as place:
        fill_powerdns(place / "db", schema)
        port = free_port()
        flags = {
            "config-dir": place,
            "socket-dir": place,
            "launch": "gsqlite3",
            "gsqlite3-database": place / "db",
            "gsqlite3-pragma-synchronous": "0",
            "local-address": "127.0.0.1",
            "local-port": port,
            "dnsupdate": "yes",
            "allow-dnsupdate-from": "127.0.0.0/8",
            "daemon": "no",
            "guardian": "no",
            "cache-ttl": "0",
            "query-cache-ttl": "0",
            "negquery-cache-ttl": "0",
            "zone-cache-refresh-interval": "0",
        }
        words = [program, *(f"--{key}={value}" for key, value in flags.items())]
        with daemons.running(words, place, lambda: answers(port)):
            yield settings(port)


def fill_powerdns(path: Path, schema: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as base, base:
        base.executescript(schema.read_text())
        base.execute("INSERT INTO tsigkeys VALUES (1, 'essaim', 'hmac-sha256', ?)", [SECRET])
        for number, zone in enumerate(ZONES, 1):
            base.execute(
                "INSERT INTO domains (id, name, type) VALUES (?, ?, 'NATIVE')", [number, zone]
            )
            soa = "ns.example.org admin.example.org 1 3600 600 86400 60"
            rows = [(zone, "SOA", soa), (zone, "NS", "ns.example.org")]
            if zone == FORWARD:
                rows += [(f"www.{zone}", "A", "10.77.0.200"), (f"mail.{zone}", "MX", "10 www")]
            for name, kind, content in rows:
                base.execute(
                    "INSERT INTO records (domain_id, name, type, content, ttl, auth)"
                    " VALUES (?, ?, ?, ?, 300, 1)",
                    [number, name, kind, content],
                )
            for kind in ("TSIG-ALLOW-DNSUPDATE", "TSIG-ALLOW-AXFR"):
                base.execute(
                    "INSERT INTO domainmetadata (domain_id, kind, content) VALUES (?, ?, 'essaim')",
                    [number, kind],
                )
