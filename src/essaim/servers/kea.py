"""Addresses of a Kea DHCP server that keeps its reservations in a database.

    dhcp:
      kind: kea
      database: mysql://kea@db.example.org/kea     # or postgresql://…
      secret: {env: KEA_DB}
      subnets: {1: 10.77.0.0/24}                   # as in Kea's own file: id and network

Kea reads a reservation (a row of `hosts`) at a card's next question; nothing is reloaded.
"""

from __future__ import annotations

import contextlib
import ipaddress
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sqlalchemy as sa

from essaim.model.errors import ClashError, RejectedError, TakenError, TransientError
from essaim.model.school import Host
from essaim.servers.cards import card, card_text
from essaim.servers.kea_errors import explained

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

_DRIVERS = {
    "mysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
    "postgresql": "postgresql+psycopg",
}
#: Kea's number for an identifier that is a card's address.
_CARD = 0
#: Seconds to wait for somebody who reserves the same address.
_TURN = 20

_HOSTS = sa.table(
    "hosts",
    sa.column("dhcp_identifier", sa.LargeBinary),
    sa.column("dhcp_identifier_type", sa.Integer),
    sa.column("dhcp4_subnet_id", sa.Integer),
    sa.column("ipv4_address", sa.BigInteger),
    sa.column("hostname", sa.String),
)
_SUBNETS = sa.table("dhcp4_subnet", sa.column("subnet_id"), sa.column("subnet_prefix"))
_FOUND = sa.select(_HOSTS.c.dhcp_identifier, _HOSTS.c.ipv4_address, _HOSTS.c.hostname)
_IS_CARD = _HOSTS.c.dhcp_identifier_type == _CARD
_SAME_SUBNET = _HOSTS.c.dhcp4_subnet_id == sa.bindparam("subnet")
_SAME_ADDRESS = _HOSTS.c.ipv4_address == sa.bindparam("address")
_SAME_CARD = sa.and_(_IS_CARD, _HOSTS.c.dhcp_identifier == sa.bindparam("card"))

# Compiled once: there are two indexes, and a question for each.
_OF_ADDRESS = _FOUND.where(_SAME_SUBNET, _SAME_ADDRESS)
_OF_CARD = _FOUND.where(_SAME_SUBNET, _SAME_CARD)
_ALL = _FOUND.where(_IS_CARD, _HOSTS.c.ipv4_address.is_not(None)).order_by(_HOSTS.c.ipv4_address)
_ADD = sa.insert(_HOSTS).values(
    dhcp_identifier=sa.bindparam("card"),
    dhcp_identifier_type=_CARD,
    dhcp4_subnet_id=sa.bindparam("subnet"),
    ipv4_address=sa.bindparam("address"),
    hostname=sa.bindparam("name"),
)
_REMOVE = sa.delete(_HOSTS).where(_SAME_SUBNET, _SAME_CARD, _SAME_ADDRESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Kea's database of hosts."""

    database: str  #: without a password
    secret: str = field(default="", repr=False)
    subnets: Mapping[int, str] = field(default_factory=dict)  #: empty: read from the database
    ca: str = ""  #: TLS is used, and verified by this, when it is given
    within: float = 10.0  #: seconds for one statement


class Kea:
    """Reservations of one Kea.  Connections stay open and are shared by all threads."""

    def __init__(self, settings: Settings) -> None:
        url = sa.make_url(settings.database)
        self._postgres = url.get_backend_name() == "postgresql"
        self._where = f"Kea's database {url.database} on {url.host} port {url.port or 'default'}"
        self._subnets = settings.subnets
        self._known: list[tuple[int, ipaddress.IPv4Network]] | None = None
        self._lock = threading.Lock()
        self._engine = self._open(url, settings)

    def admit(self, host: Host) -> None:
        """Reserve its address and name for its card, from the card's next question on.

        ClashError when another card has the address, TakenError when this card has another one.
        """
        with self._connected() as connection:
            row = self._row(connection, host)
            with self._turn(connection, str(row["address"])):
                if self._there(connection, row, host):
                    return
                try:
                    connection.execute(_ADD, row)
                    connection.commit()
                except sa.exc.IntegrityError:
                    connection.rollback()
                    # Somebody was quicker with this very card: see with which address.
                    if not self._there(connection, row, host):
                        raise

    def dismiss(self, host: Host) -> None:
        """Reserve nothing any more.  Nothing if it is gone, or belongs to another card now."""
        with self._connected() as connection:
            connection.execute(_REMOVE, self._row(connection, host))
            connection.commit()

    def admitted(self) -> Sequence[Host]:
        """Every host with a reservation for its card, by address."""
        with self._connected() as connection:
            return [
                Host(name=name or "", address=_text(address), mac=card_text(bytes(identifier)))
                for identifier, address, name in connection.execute(_ALL)
            ]

    def close(self) -> None:
        """Close its connections."""
        self._engine.dispose()

    def _open(self, url: sa.URL, settings: Settings) -> Engine:
        backend = url.get_backend_name()
        whole = url.set(drivername=_DRIVERS[backend], password=settings.secret or None)
        seconds = max(1, int(settings.within))
        options: dict[str, object] = {"connect_timeout": seconds}
        if self._postgres:
            options["options"] = f"-c statement_timeout={seconds * 1000}"
            if settings.ca:
                options |= {"sslmode": "verify-full", "sslrootcert": settings.ca}
        else:
            options |= {"read_timeout": seconds + _TURN, "write_timeout": seconds}
            if settings.ca:
                options |= {"ssl_ca": settings.ca, "ssl_verify_identity": True}
        return sa.create_engine(
            whole,
            connect_args=options,
            pool_size=4,
            max_overflow=28,
            pool_pre_ping=True,
            pool_recycle=600,
            isolation_level="READ COMMITTED",
            hide_parameters=True,
        )

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Connection]:
        """A connection; what was not committed by the end of the block is undone."""
        with explained(self._where), self._engine.connect() as connection:
            yield connection

    def _row(self, connection: Connection, host: Host) -> dict[str, object]:
        address = ipaddress.ip_address(host.address)
        if not isinstance(address, ipaddress.IPv4Address):
            raise RejectedError(
                f"{host.name}: Kea gives cards IPv4 addresses, not {address}",
                hint="IPv6 machines find their address themselves: leave dhcp out of the site",
            )
        return {
            "card": card(host),
            "address": int(address),
            "name": host.name,
            "subnet": self._subnet(connection, address),
        }

    def _subnet(self, connection: Connection, address: ipaddress.IPv4Address) -> int:
        """Kea's number of the network that an address is in."""
        with self._lock:
            if self._known is None:
                found = self._subnets.items() or [
                    (int(number), str(prefix))
                    for number, prefix in connection.execute(sa.select(_SUBNETS))
                ]
                self._known = [(number, ipaddress.IPv4Network(cidr)) for number, cidr in found]
            known = self._known
        for number, network in known:
            if address in network:
                return number
        listed = ", ".join(f"{number} ({network})" for number, network in known) or "none"
        raise RejectedError(
            f"{address} is in no subnet that Kea is known to have: {listed}",
            hint="write Kea's subnets into dhcp.subnets of the site, such as {1: 10.77.0.0/24}",
        )

    @contextlib.contextmanager
    def _turn(self, connection: Connection, name: str) -> Iterator[None]:
        """Let one at a time decide about an address: Kea's table does not make it unique."""
        if self._postgres:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": int(name)})
            yield
            return
        key = {"key": f"essaim-kea-{name}"}
        if not connection.execute(sa.text(f"SELECT GET_LOCK(:key, {_TURN})"), key).scalar():
            raise TransientError(f"{self._where}: others decided about an address for {_TURN} s")
        try:
            yield
        finally:
            # A connection that was lost has lost the lock as well.
            with contextlib.suppress(sa.exc.DBAPIError):
                connection.rollback()
                connection.execute(sa.text("DO RELEASE_LOCK(:key)"), key)

    @staticmethod
    def _there(connection: Connection, row: dict[str, object], host: Host) -> bool:
        """Whether the reservation is there as wanted.  TakenError when another is in the way."""
        found = [*connection.execute(_OF_ADDRESS, row), *connection.execute(_OF_CARD, row)]
        for identifier, address, name in found:
            theirs = bytes(identifier)
            if theirs != row["card"]:
                raise ClashError(
                    f"{host.address} is reserved for {card_text(theirs)} ({name or 'no name'})",
                    hint="choose another address, or remove that reservation",
                )
            if (address, name) != (row["address"], row["name"]):
                raise TakenError(
                    f"the card {host.mac} is reserved {_text(address)} as {name or 'no name'}, "
                    f"not {host.address} as {host.name}",
                    hint="remove that reservation if it is an old one of the same machine",
                )
        return bool(found)


def _text(address: int | None) -> str:
    return str(ipaddress.IPv4Address(address)) if address is not None else "no address"
