"""Ten thousand agents beat every 30 s: what that costs one server process, and what gets lost."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from essaim_lab.bench import processes, seeding, server
from essaim_lab.bench.load import Client, percentile
from essaim_lab.bench.rows import Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

AGENTS, INTERVAL = 10_000, 30.0
MINUTES = 2.0
HEARTBEAT = "/api/workers/heartbeat"
OK = 200
SEED = 30
SHARE = 40.0  #: percent of one core, at most
SLOPE = 1.0  #: MB a minute: less is what allocators do by themselves
KEPT = 16  #: connections that all agents share, where they are kept


@dataclass(slots=True)
class Beats:
    """What came of the heartbeats of some minutes."""

    sent: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu: float = 0.0  #: seconds, of the server
    before: int = 0  #: bytes of memory of the server, once all have beaten
    after: int = 0

    @property
    def share(self) -> float:
        """Percent of one core."""
        return 100 * self.cpu / self.seconds

    @property
    def slope(self) -> float:
        """MB of memory a minute."""
        return (self.after - self.before) / 1e6 / (self.seconds / 60)


def measure(*, quick: bool, minutes: float | None = None) -> Iterator[Row]:
    """Let agents beat for some minutes, each beat on a new connection, as real ones do."""
    agents, interval = (200, 2.0) if quick else (AGENTS, INTERVAL)
    lasts = 60 * (minutes if minutes is not None else 0.1 if quick else MINUTES)
    with tempfile.TemporaryDirectory(prefix="essaim-bench-") as home:
        url = f"sqlite:///{home}/essaim.db"
        with server.serving(Path(home), url, interval=interval) as served:
            credentials = _seeded(url, agents)
            found = beat(served, credentials, interval, lasts)
            kept = beat(served, credentials, interval, min(lasts, 2 * interval), shared=KEPT)
    yield from rows(found, agents, interval)
    yield _row(
        f"the same, over {KEPT} connections that are kept: CPU of the server each",
        1000 * kept.cpu / max(1, kept.sent), "ms", kept,
    )  # fmt: skip


def rows(found: Beats, agents: int, interval: float) -> Iterator[Row]:
    """Give the lines of the real thing."""
    what = f"{agents:,} agents, a beat each {interval:g} s for {found.seconds / 60:.3g} min"
    yield _row(f"{what}: one core", found.share, "%", found, most=SHARE)
    yield _row(
        f"{what}: CPU of the server each", 1000 * found.cpu / max(1, found.sent), "ms", found
    )
    yield _row(f"{what}: lost", found.lost.total(), "", found, most=0)
    yield _row(f"{what}: answered, p99", percentile(found.times, 99), "s", found)
    yield _row(f"{what}: memory a minute", found.slope, "MB", found, most=SLOPE)


def beat(
    served: server.Served,
    credentials: Sequence[str],
    interval: float,
    seconds: float,
    *,
    shared: int = 0,
) -> Beats:
    """Beat in time for so long, after one interval that does not count."""
    return asyncio.run(_beat(served, credentials, interval, seconds, shared))


async def _beat(
    served: server.Served,
    credentials: Sequence[str],
    interval: float,
    seconds: float,
    shared: int,
) -> Beats:
    found = Beats()
    agents = _Agents(served.port, credentials, shared, found)
    await agents.beat_for(interval, interval)
    found.sent, found.lost, found.times = 0, Counter(), []
    found.before, cpu = processes.resident(served.pid), processes.cpu(served.pid)
    began = time.perf_counter()
    await agents.beat_for(seconds, interval)
    found.seconds = time.perf_counter() - began
    found.cpu = processes.cpu(served.pid) - cpu
    found.after = processes.resident(served.pid)
    await agents.close()
    return found


class _Agents:
    """All agents of a fleet, each with its own credential and numbers."""

    def __init__(self, port: int, credentials: Sequence[str], shared: int, found: Beats) -> None:
        self._port = port
        self._found = found
        self._headers = [{"Authorization": f"Bearer {each}"} for each in credentials]
        self._free: asyncio.Queue[Client] | None = None
        if shared:
            self._free = asyncio.Queue()
            for _ in range(shared):
                self._free.put_nowait(Client(port))

    async def beat_for(self, seconds: float, interval: float) -> None:
        """Let every agent beat once in each interval, at a moment of its own."""
        dice = random.Random(SEED)  # noqa: S311 - nothing is kept secret with it
        moments = sorted(
            (number * interval + dice.random() * interval, agent)
            for agent in range(len(self._headers))
            for number in range(max(1, round(seconds / interval)))
        )
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for at, agent in moments:
                left = began + at - time.perf_counter()
                if left > 0:
                    await asyncio.sleep(left)
                group.create_task(self._one(agent))

    async def _one(self, agent: int) -> None:
        # Milliseconds since boot, as a real agent counts: it grows also between two of these.
        number = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
        body = {"load": 0.25, "accounts": [], "boot_id": seeding.BOOT, "seq": number}
        client = Client(self._port, keep=False) if self._free is None else await self._free.get()
        answer = await client.post(HEARTBEAT, body, self._headers[agent])
        if self._free is not None:
            self._free.put_nowait(client)
        self._found.sent += 1
        self._found.times.append(answer.seconds)
        if answer.status != OK:
            self._found.lost[f"{answer.status} {str(answer.body)[:120]}"] += 1

    async def close(self) -> None:
        """Let go of the connections."""
        while self._free is not None and not self._free.empty():
            await self._free.get_nowait().close()


def _seeded(url: str, agents: int) -> list[str]:
    from essaim.store.database import open_database  # noqa: PLC0415 - SQLAlchemy is heavy

    database = open_database(url)
    try:
        return seeding.nodes(database, agents)
    finally:
        database.close()


def _row(what: str, value: float, unit: str, found: Beats, *, most: float | None = None) -> Row:
    memory = f"{found.before / 1e6:.1f} MB before, {found.after / 1e6:.1f} MB after"
    return Row(
        what=what,
        value=value,
        unit=unit,
        command="python -m essaim_lab.bench.server on SQLite; POST /api/workers/heartbeat",
        most=most,
        note=f"{found.sent} beats, lost {dict(found.lost)}, {memory}; SSH checks answer for free",
    )
