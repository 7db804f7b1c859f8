"""Leases granted and heartbeats answered a second by 1, 2 and 4 API processes behind Caddy."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from essaim_lab.bench import grants, seeding, services
from essaim_lab.bench.beats import HEARTBEAT
from essaim_lab.bench.cluster import Cluster, cluster
from essaim_lab.bench.front import Front, caddy
from essaim_lab.bench.load import Answer, Client, Tally, closed_loop
from essaim_lab.bench.meter import CORES, Meter
from essaim_lab.bench.rows import CannotRunError, Peer, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from essaim_lab.bench.load import Asks

COUNTS = (1, 2, 4)
#: Fewer than may log in from one address in a minute: the API is as it is shipped.
CLIENTS = 32
NODES, SECONDS, WARM = 4000, 15.0, 2.0
OK = 200
_row = functools.partial(Row, command="essaim api; caddy run --config deploy/Caddyfile")
DATABASES = {
    "PostgreSQL": services.postgresql_server,
    "MariaDB": services.mariadb_server,
}


@dataclass(frozen=True, slots=True)
class Found:
    """What came of one kind of request, asked by all clients as fast as they were answered."""

    what: str
    tally: Tally
    meter: Meter
    doubles: int = 0  #: grants that are not so in the database

    @property
    def bad(self) -> Counter[str]:
        """What went wrong, and how often."""
        return self.tally.failures + Counter(doubles=self.doubles)


def measure(*, quick: bool) -> Iterator[Row]:
    """Ask as much as can be answered, with each number of processes, on each database."""
    nodes, seconds, warm = (300, 2.0, 0.5) if quick else (NODES, SECONDS, WARM)
    databases = list(DATABASES)[:1] if quick else list(DATABASES)
    for database in databases:
        with DATABASES[database]() as server:
            first: dict[str, float] = {}
            bad: Counter[str] = Counter()
            for count in COUNTS[:2] if quick else COUNTS:
                for found in asked(server, count, nodes, seconds, warm):
                    one = first.setdefault(found.what, found.tally.rate)
                    bad += found.bad
                    yield from rows(found, count, database, one)
            yield _row(
                what=f"requests behind Caddy, {database}: failed, or granted twice",
                value=bad.total(), unit="", most=0, note=str(dict(bad)),
            )  # fmt: skip


def asked(
    server: services.Server, count: int, nodes: int, seconds: float, warm: float
) -> Iterator[Found]:
    """Let so many processes answer, on a database of their own."""
    with cluster(server.new(f"essaim_replicas_{count}")) as plane:
        _people(plane)
        apis = plane.apis(count)
        credentials = seeding.nodes(plane.database, nodes)
        with caddy([api.port for api in apis]) as front:
            groups = {
                "API": [api.pid for api in apis],
                "Caddy": [front.pid],
                "database": [server.pid],
            }
            yield from _beats(front, groups, credentials, seconds, warm)
            yield _grants(plane, front, groups, nodes, seconds)


def rows(found: Found, count: int, database: str, one: float) -> Iterator[Row]:
    """Give the lines of one measurement; `one` is what a single process answered a second."""
    what = f"{found.what}, {count} API process{'es' if count > 1 else ''}, {database}"
    tally, meter = found.tally, found.meter
    note = f"{meter.sentence()}; {len(tally.granted)} answered, p99 {_p99(tally):.3f} s"
    peer = Peer(name="1 process", value=one) if count > 1 else None
    yield _row(what=what, value=tally.rate, unit="/s", more_is_better=True, peer=peer, note=note)
    each = 1000 * meter.cpu["API"] / max(1, len(tally.granted))
    yield _row(what=f"{what}: CPU of the API each", value=each, unit="ms", note=note)
    yield _row(what=f"{what}: cores busy of {CORES}", value=meter.busy, unit="", note=note)


def _people(plane: Cluster) -> None:
    from essaim.usecases.credentials import hash_password  # noqa: PLC0415 - heavy

    names = [f"renter-{number}" for number in range(CLIENTS)]
    seeding.people(plane.database, names, hash_password(grants.PASSWORD))


def _beats(
    front: Front,
    groups: dict[str, list[int]],
    credentials: Sequence[str],
    seconds: float,
    warm: float,
) -> Iterator[Found]:
    kept = [Beater(front, credentials[n::CLIENTS]) for n in range(CLIENTS)]
    closed_loop(kept, seconds=warm, most=10**9, granted=is_heard)
    yield _measured("heartbeats", groups, kept, seconds, is_heard)
    anew = [Beater(front, credentials[n::CLIENTS], keep=False) for n in range(CLIENTS)]
    yield _measured("heartbeats, each on a new TLS connection", groups, anew, seconds, is_heard)


def _grants(
    plane: Cluster, front: Front, groups: dict[str, list[int]], nodes: int, seconds: float
) -> Found:
    renters = [
        grants.Renter(front.port, f"renter-{n}", again=False, tls=front.tls) for n in range(CLIENTS)
    ]
    asyncio.run(_log_in(renters))
    found = _measured("grants", groups, renters, seconds, grants.is_grant, most=nodes)
    twice = seeding.doubles(plane.database, [body["id"] for body in found.tally.granted])
    return Found(found.what, found.tally, found.meter, twice)


async def _log_in(renters: Sequence[grants.Renter]) -> None:
    # Before anything is measured: hashing a password costs more than a lease.
    for renter in renters:
        answer = await renter.log_in()
        if answer.status != OK:
            raise CannotRunError(f"nobody can log in: {answer.status} {answer.body}")
        await renter.close()


def _measured(
    what: str,
    groups: dict[str, list[int]],
    clients: Sequence[Asks],
    seconds: float,
    good: Callable[[Answer], bool],
    *,
    most: int = 10**9,
) -> Found:
    with Meter(groups) as meter:
        tally = closed_loop(clients, seconds=seconds, most=most, granted=good)
    return Found(what, tally, meter)


def is_heard(answer: Answer) -> bool:
    """Whether a heartbeat was answered by the API itself."""
    return answer.status == OK and isinstance(answer.body, dict)


class Beater:
    """Sends the heartbeats of some agents, one after another."""

    def __init__(self, front: Front, credentials: Sequence[str], *, keep: bool = True) -> None:
        self._client = Client(front.port, keep=keep, tls=front.tls)
        self._headers = [{"Authorization": f"Bearer {each}"} for each in credentials]
        self._sent = 0

    async def ask(self) -> Answer:
        """Send the next agent's."""
        headers = self._headers[self._sent % len(self._headers)]
        self._sent += 1
        return await self._client.post(HEARTBEAT, beat(), headers)

    async def close(self) -> None:
        """Let go of the connection."""
        await self._client.close()


def beat() -> dict[str, Any]:
    """Make what a real agent says; its number grows from one to the next."""
    number = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    return {"load": 0.25, "accounts": [], "boot_id": seeding.BOOT, "seq": number}


def _p99(tally: Tally) -> float:
    return float(tally.document(0.0)["p99"])
