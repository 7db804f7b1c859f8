"""All API processes are restarted one after another while requests go on: how many fail."""

from __future__ import annotations

import asyncio
import functools
import itertools
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from essaim_lab.bench import grants, seeding, services
from essaim_lab.bench.beats import HEARTBEAT
from essaim_lab.bench.cluster import PATIENCE, PAUSE, Api, Cluster, cluster
from essaim_lab.bench.front import Front, caddy
from essaim_lab.bench.load import Answer, Client, percentile
from essaim_lab.bench.replicas import beat, is_heard
from essaim_lab.bench.rows import CannotRunError, Peer, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

RATE = 100.0
REPLICAS, NODES = 3, 4000
#: Seconds of requests before the first restart and after the last.
BEFORE, AFTER = 10.0, 3.0
#: Seconds that a process says it is not ready before it stops listening: what is shipped.
DRAIN = 5.0
#: Seconds after which Caddy has surely seen that a process is ready again.
NOTICED = 2.0
#: Of every ten requests these many are looks and rents; the others are heartbeats.
LOOKS, RENTS = 3, 1
LEASES = "/api/leases?limit=20"
OK = 200
NAME = "roller"


@dataclass(slots=True)
class Answered:
    """What came of requests that were sent at their time, whatever became of those before."""

    times: list[float] = field(default_factory=list)  #: from when it was due to all of its answer
    failures: Counter[str] = field(default_factory=Counter)
    granted: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Rolled:
    """Requests before the restarts and during them."""

    before: Answered
    during: Answered
    restarts: int
    doubles: int


def measure(*, quick: bool) -> Iterator[Row]:
    """Restart as the page on deployments says: wait for each until Caddy has seen it back."""
    replicas, before, drain = (2, 2.0, 3.0) if quick else (REPLICAS, BEFORE, DRAIN)
    with services.postgresql_server() as server:
        url = server.new("essaim_rolling")
        found = rolled(url, replicas, before=before, drain=drain)
    yield from rows(found)


def rows(found: Rolled) -> Iterator[Row]:
    """Give the lines."""
    during, before = found.during, found.before
    sent = len(during.times) + during.failures.total()
    what = f"{found.restarts} API processes restarted under {RATE:g} requests/s"
    command = "SIGTERM, essaim api, /readyz, 2 s; requests through caddy and deploy/Caddyfile"
    note = f"{sent} requests in {during.seconds:.1f} s, failed {dict(during.failures)}"
    row = functools.partial(Row, command=command, note=note)
    failed = during.failures.total() + before.failures.total()
    yield row(what=f"{what}: failed", value=failed, unit="", most=0)
    yield row(what=f"{what}: doubles", value=found.doubles, unit="", most=0)
    yield row(what=f"{what}: sent", value=sent / during.seconds, unit="/s", more_is_better=True)
    for share in (50, 99):
        rest = Peer(name="without restarts", value=percentile(before.times, share))
        value = percentile(during.times, share)
        yield row(what=f"{what}: answered, p{share}", value=value, unit="s", peer=rest)
    yield row(what=f"{what}: the longest", value=max(during.times, default=0.0), unit="s")


def rolled(
    url: str, replicas: int, *, before: float, drain: float, restarts: int | None = None
) -> Rolled:
    """Restart all of so many processes, or the first few, on a database of their own."""
    with cluster(url) as plane:
        token = _prepared(plane)
        apis = plane.apis(replicas, "--drain", str(drain))
        credentials = seeding.nodes(plane.database, NODES)
        with caddy([api.port for api in apis]) as front:
            headers = asyncio.run(_logged_in(front, token))
            found = asyncio.run(_rolled(front, apis[:restarts], headers, credentials, before))
        both = (*found[0].granted, *found[1].granted)
        doubles = seeding.doubles(plane.database, both)
    return Rolled(*found, restarts=len(apis[:restarts]), doubles=doubles)


def _prepared(plane: Cluster) -> str:
    from essaim.usecases.credentials import hash_password  # noqa: PLC0415 - heavy

    seeding.people(plane.database, [NAME], hash_password(grants.PASSWORD))
    return grants.PASSWORD


async def _logged_in(front: Front, password: str) -> dict[str, str]:
    client = Client(front.port, keep=False, tls=front.tls)
    answer = await client.post(grants.LOGIN, {"name": NAME, "password": password}, {})
    if answer.status != OK:
        raise CannotRunError(f"nobody can log in: {answer.status} {answer.body}")
    return {"Authorization": f"Bearer {answer.body['access']}"}


async def _rolled(
    front: Front,
    apis: Sequence[Api],
    headers: Mapping[str, str],
    credentials: Sequence[str],
    before: float,
) -> tuple[Answered, Answered]:
    load = Load(front, headers, credentials)
    try:
        calm = await load.until(asyncio.create_task(asyncio.sleep(before)))
        return calm, await load.until(asyncio.create_task(_restart(apis)))
    finally:
        await load.close()


async def _restart(apis: Sequence[Api]) -> None:
    for api in apis:
        api.send(signal.SIGTERM)
        await _until(lambda api=api: not api.lives)  # type: ignore[misc]
        if api.code:
            raise CannotRunError(f"an API process ended {api.code}")
        api.start()
        probe = Client(api.port, keep=False)
        while (await probe.get("/readyz", {})).status != OK:
            if not api.lives:
                raise CannotRunError(f"an API process did not start again: it ended {api.code}")
            await asyncio.sleep(PAUSE)
        await asyncio.sleep(NOTICED)
    await asyncio.sleep(AFTER)


async def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise CannotRunError(f"an API process did not end within {PATIENCE:.0f} s")
        await asyncio.sleep(PAUSE)


class Load:
    """Sends requests at their time: heartbeats, looks at leases, and rents."""

    def __init__(
        self, front: Front, headers: Mapping[str, str], credentials: Sequence[str]
    ) -> None:
        self._front, self._headers = front, headers
        self._agents = itertools.cycle({"Authorization": f"Bearer {each}"} for each in credentials)
        self._numbers = itertools.count()
        self._free: list[Client] = []

    async def until(self, task: asyncio.Task[None]) -> Answered:
        """Send until the task is done; its error is raised here."""
        found = Answered()
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in itertools.count():
                due = began + number / RATE
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                if task.done():
                    break
                group.create_task(self._one(due, found))
        found.seconds = time.perf_counter() - began
        await task
        return found

    async def _one(self, due: float, found: Answered) -> None:
        # Whoever waits for an answer delays nobody else: there is always another connection.
        client = self._free.pop() if self._free else Client(self._front.port, tls=self._front.tls)
        kind, good, answer = await self._ask(client)
        self._free.append(client)
        if not good:
            found.failures[f"{kind}: {answer.status} {str(answer.body)[:120]}"] += 1
            return
        found.times.append(time.perf_counter() - due)
        if kind == "rent":
            found.granted.append(answer.body["id"])

    async def _ask(self, client: Client) -> tuple[str, bool, Answer]:
        kind = next(self._numbers) % 10
        if kind < LOOKS:
            answer = await client.get(LEASES, self._headers)
            return "look", answer.status == OK, answer
        if kind < LOOKS + RENTS:
            wish = {"public_key": seeding.KEY, "patience": 0}
            answer = await client.post(grants.RENT, wish, self._headers)
            return "rent", grants.is_grant(answer), answer
        answer = await client.post(HEARTBEAT, beat(), next(self._agents))
        return "heartbeat", is_heard(answer), answer

    async def close(self) -> None:
        """Let go of the connections."""
        for client in self._free:
            await client.close()
