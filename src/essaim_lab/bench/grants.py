"""Leases granted a second under contention: Essaim beside CentOS Duffy, on PostgreSQL both."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim_lab.bench import duffy, processes, seeding, server, services
from essaim_lab.bench.load import Answer, Client, closed_loop
from essaim_lab.bench.rows import CannotRunError, Peer, Row

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping

    from essaim.store.database import Database

NAME = f"Duffy {duffy.VERSION}"
PASSWORD = "a sentence nobody guesses"  # noqa: S105 - of people who exist for a minute
LOGIN, RENT = "/api/login", "/api/rent"
HELD = ("granted", "active")
OK = 200

#: Clients at once, and how many times better than the peer with the most of them.
CLIENTS = (1, 10, 50)
AS_SHIPPED, UNHASHED = 50.0, 10.0
WITHIN = 0.5


def measure(*, quick: bool) -> Iterator[Row]:
    """Rent until the time or the nodes are over, with 1, 10 and 50 clients, then the same there."""
    nodes, seconds = (200, 3.0) if quick else (2000, 20.0)
    with services.postgresql() as where:
        for plain in (False, True):
            theirs = _peers(nodes, seconds, plain=plain)
            how = "hashing removed from both" if plain else "as shipped"
            for clients in CLIENTS:
                mine = essaim(where, nodes, clients, seconds, plain=plain)
                peer = theirs if isinstance(theirs, str) else theirs[clients]
                last = clients == CLIENTS[-1]
                goal = (UNHASHED if plain else AS_SHIPPED) if last else None
                yield from rows(how, nodes, mine, peer, goal)
        mine = essaim(where, nodes, CLIENTS[-1], seconds, plain=False, again=True)
        yield _row(
            f"grants, {CLIENTS[-1]} clients, a login with its hash before each", mine, "rate", "/s"
        )


def rows(
    how: str, nodes: int, mine: Mapping[str, Any], peer: Mapping[str, Any] | str, goal: float | None
) -> Iterator[Row]:
    """Give the lines of one measurement; a peer that is a text says why there is none."""
    clients = mine["clients"]
    who = f"{clients} client{'s' if clients > 1 else ''}"
    what = f"grants of {nodes:,} nodes, {who}, {how}"
    yield _row(what, mine, "rate", "/s", peer=_peer(peer, "rate"), least_ratio=goal)
    if goal is not None:
        yield _row(f"{what}: p50", mine, "p50", "s", peer=_peer(peer, "p50"))
        yield _row(f"{what}: p99", mine, "p99", "s", peer=_peer(peer, "p99"), most=WITHIN)
        yield _row(f"{what}: CPU of the server each", mine, "cpu", "ms", peer=_peer(peer, "cpu"))
    yield _row(f"{what}: failed", mine, "failed", "", peer=_peer(peer, "failed"), most=0)
    yield _row(f"{what}: doubles", mine, "doubles", "", peer=_peer(peer, "doubles"), most=0)


def essaim(
    where: str, nodes: int, clients: int, seconds: float, *, plain: bool, again: bool = False
) -> dict[str, Any]:
    """Measure Essaim with so many clients, on a database and a server of its own.

    With `again` everybody logs in before each rent, instead of once at the beginning.
    """
    from essaim.store.database import open_database  # noqa: PLC0415 - SQLAlchemy is heavy
    from essaim.store.migrate import migrate  # noqa: PLC0415

    name = f"essaim_{clients}_{plain:d}{again:d}"
    url = f"postgresql://{services.new_database(where, name)}"
    database = open_database(url)
    try:
        migrate(database)
        return _rented(database, url, nodes, clients, seconds, plain=plain, again=again)
    finally:
        database.close()


def _rented(
    database: Database,
    url: str,
    nodes: int,
    clients: int,
    seconds: float,
    *,
    plain: bool,
    again: bool,
) -> dict[str, Any]:
    from essaim.usecases.credentials import hash_password  # noqa: PLC0415

    names = [f"renter-{number}" for number in range(clients)]
    seeding.people(database, names, PASSWORD if plain else hash_password(PASSWORD))
    with (
        tempfile.TemporaryDirectory(prefix="essaim-bench-") as home,
        server.serving(Path(home), url, plain=plain) as served,
    ):
        seeding.nodes(database, nodes)
        renters = [Renter(served.port, name, again=again) for name in names]
        before = processes.cpu(served.pid)
        tally = closed_loop(renters, seconds=seconds, most=nodes, granted=is_grant)
        spent = processes.cpu(served.pid) - before
    twice = seeding.doubles(database, [body["id"] for body in tally.granted])
    return {**tally.document(spent), "clients": clients, "doubles": twice}


def is_grant(answer: Answer) -> bool:
    """Whether a request got a lease that has its node."""
    body = answer.body
    return isinstance(body, dict) and body.get("state") in HELD and len(body["nodes"]) == 1


class Renter:
    """Logs in, then rents one machine after another."""

    def __init__(
        self, port: int, name: str, *, again: bool, tls: ssl.SSLContext | None = None
    ) -> None:
        self._client = Client(port, tls=tls)
        self._name = name
        self._again = again
        self._headers: dict[str, str] = {}

    async def ask(self) -> Answer:
        """Rent one machine, and do not wait for its account."""
        spent = 0.0
        if self._again or not self._headers:
            shown = await self.log_in()
            if shown.status != OK:
                return shown
            # Who logs in once has not waited for this lease meanwhile; the clock has run, though.
            spent = shown.seconds if self._again else 0.0
        wish = {"public_key": seeding.KEY, "patience": 0}
        answer = await self._client.post(RENT, wish, self._headers)
        return Answer(answer.status, answer.body, answer.seconds + spent)

    async def log_in(self) -> Answer:
        """Show the password; what is asked from then on is asked as this person."""
        shown = await self._client.post(LOGIN, {"name": self._name, "password": PASSWORD}, {})
        if shown.status == OK:
            self._headers = {"Authorization": f"Bearer {shown.body['access']}"}
        return shown

    async def close(self) -> None:
        """Let go of the connection."""
        await self._client.close()


def _peers(nodes: int, seconds: float, *, plain: bool) -> dict[int, dict[str, Any]] | str:
    from essaim.bootstrap import cache_home  # noqa: PLC0415

    try:
        found = duffy.peer(
            cache_home(os.environ), nodes=nodes, clients=CLIENTS, seconds=seconds, plain=plain
        )
    except CannotRunError as error:
        return f"not measured: {str(error).splitlines()[0][:80]}"
    return {each["clients"]: each for each in found}


def _peer(found: Mapping[str, Any] | str, figure: str) -> Peer:
    if isinstance(found, str):
        return Peer(name=NAME, note=found)
    return Peer(
        name=NAME,
        value=float(found[figure]),
        command="duffy serve; POST /api/v1/sessions, one node",
        note=_note(found),
    )


def _note(found: Mapping[str, Any]) -> str:
    return (
        f"{found['granted']} granted in {found['seconds']:.1f} s, {found['failed']} failed "
        f"{dict(found['failures'])}, {found['doubles']} doubles, p99 {found['p99']:.2f} s"
    )


def _row(what: str, mine: Mapping[str, Any], figure: str, unit: str, **more: Any) -> Row:
    return Row(
        what=what,
        value=float(mine[figure]),
        unit=unit,
        command="python -m essaim_lab.bench.server; POST /api/login, POST /api/rent, one machine",
        more_is_better=figure == "rate",
        note=_note(mine),
        **more,
    )
