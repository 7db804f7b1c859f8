"""What a message costs: CPU of a run that comes over Celery, less that of one in this process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim_lab.bench import services
from essaim_lab.bench.cluster import cluster
from essaim_lab.bench.program import WAITS, waits
from essaim_lab.bench.rows import Row
from essaim_lab.bench.workers import Carried, carry, told

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS, WAIT = 400, 0.5
CONCURRENCY = 16
MOST = 15.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of CPU of one run, by who spent them."""

    sender: float
    carrier: float
    broker: float = 0.0

    @property
    def whole(self) -> float:
        """What Essaim's processes spent: the broker is told apart."""
        return self.sender + self.carrier


def measure(*, quick: bool) -> Iterator[Row]:
    """Carry the same runs both ways, on PostgreSQL."""
    runs, wait = (48, 0.25) if quick else (RUNS, WAIT)
    with services.postgresql_server() as server:
        here = threads(server.new("essaim_threads"), runs, wait)
        with services.redis_server() as broker:
            there = celery(server.new("essaim_celery"), broker, runs, wait)
    yield from rows(here, there, runs, wait)


def rows(here: Cost, there: Cost, runs: int, wait: float) -> Iterator[Row]:
    """Give the lines of both ways."""
    what = f"{runs} runs that wait {wait:g} s: CPU each"
    yield Row(
        what=f"{what}, threads of one process", value=here.whole, unit="ms",
        command=f"ThreadCourier(engine, threads={CONCURRENCY}), PostgreSQL",
    )  # fmt: skip
    command = f"CeleryCourier; essaim worker --concurrency {CONCURRENCY}, PostgreSQL, Redis"
    yield Row(
        what=f"{what}, Celery over Redis", value=there.whole, unit="ms", command=command,
        note=f"{there.carrier:.2f} ms of them in the worker, {there.sender:.2f} ms in the sender",
    )  # fmt: skip
    yield Row(
        what=f"{what}: Celery's overhead", value=there.whole - here.whole, unit="ms", most=MOST,
        command=command, note=f"Redis itself spends {there.broker:.2f} ms more",
    )  # fmt: skip


def threads(url: str, runs: int, wait: float) -> Cost:
    """Carry the runs in threads of this process, and say what that costs it."""
    from essaim.couriers.threads import ThreadCourier  # noqa: PLC0415 - heavy
    from essaim.engine.execute import Engine  # noqa: PLC0415
    from essaim.engine.owner import this_owner  # noqa: PLC0415
    from essaim.store.journal import SqlJournal  # noqa: PLC0415

    with cluster(url) as plane:
        engine = Engine(SqlJournal(plane.database), {WAITS: waits()}, None, owner=this_owner())
        courier = ThreadCourier(engine, threads=CONCURRENCY)
        try:
            carry(plane, courier.wake, "warm", 2 * CONCURRENCY, 0.1)
            before = time.process_time()
            carry(plane, courier.wake, "run", runs, wait)
            used = time.process_time() - before
        finally:
            courier.stop()
    return Cost(sender=0.0, carrier=1000 * used / runs)


def celery(url: str, broker: services.Broker, runs: int, wait: float) -> Cost:
    """Carry the runs in a worker that is told of them by this process."""
    with cluster(url, broker.url) as plane:
        found = told(plane, plane.workers(1, CONCURRENCY), runs, wait, broker=[broker.pid])
    return spent(found)


def spent(found: Carried) -> Cost:
    """Divide what was measured among the runs."""
    each = {name: 1000 * used / found.runs for name, used in found.meter.cpu.items()}
    return Cost(sender=each["this process"], carrier=each["workers"], broker=each["broker"])
