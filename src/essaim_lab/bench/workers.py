"""Runs a second of 1, 2 and 4 workers, when runs do nothing but wait: as in talking to machines."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim_lab.bench import services
from essaim_lab.bench.cluster import Cluster, Process, await_, cluster
from essaim_lab.bench.meter import CORES, Meter
from essaim_lab.bench.program import WAITS
from essaim_lab.bench.rows import CannotRunError, Peer, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

COUNTS = (1, 2, 4)
RUNS, WAIT = 400, 0.5
#: Runs that one worker carries at the same time: few, so that the last round weighs little.
CONCURRENCY = 5
LINEAR = 0.9
#: Seconds between looks whether all is done; the end itself is read from the database.
LOOK_EVERY = 0.2


@dataclass(frozen=True, slots=True)
class Carried:
    """Runs that were carried to their end."""

    runs: int
    seconds: float  #: from adding them to the end of the last, by the database's clock
    meter: Meter

    @property
    def rate(self) -> float:
        """Runs a second."""
        return self.runs / self.seconds


def measure(*, quick: bool) -> Iterator[Row]:
    """Give the same runs to each number of workers, over PostgreSQL and Redis."""
    runs, wait = (48, 0.25) if quick else (RUNS, WAIT)
    one = 0.0
    with services.postgresql_server() as server, services.redis() as broker:
        for number, count in enumerate(COUNTS[:2] if quick else COUNTS):
            url = server.new(f"essaim_workers_{count}")
            found = carried(url, f"redis://127.0.0.1:{broker}/{number}", count, runs, wait)
            one = one or found.rate
            yield from rows(found, count, wait, one)


def rows(found: Carried, count: int, wait: float, one: float) -> Iterator[Row]:
    """Give the lines of one number of workers; `one` is what a single worker carried a second."""
    who = f"{count} worker{'s' if count > 1 else ''} of {CONCURRENCY}"
    what = f"{found.runs} runs that wait {wait:g} s, {who}"
    linear = (
        Peer(name="nothing but waiting", value=CONCURRENCY / wait)
        if count == 1
        else Peer(name=f"{count} x one worker", value=count * one)
    )
    full = "the processors are full: nothing is promised; " if found.meter.full else ""
    note = f"{full}{found.meter.sentence()}; {found.seconds:.2f} s"
    command = f"essaim worker --concurrency {CONCURRENCY}, PostgreSQL, Redis"
    yield Row(
        what=what, value=found.rate, unit="/s", more_is_better=True, peer=linear,
        least_ratio=None if found.meter.full else LINEAR, command=command, note=note,
    )  # fmt: skip
    busy = found.meter.busy
    yield Row(what=f"{what}: cores busy of {CORES}", value=busy, unit="", command=command)


def carried(url: str, broker: str, count: int, runs: int, wait: float) -> Carried:
    """Let so many workers carry the runs, on a database of their own."""
    with cluster(url, broker) as plane:
        return told(plane, plane.workers(count, CONCURRENCY), runs, wait)


def told(
    plane: Cluster, workers: Sequence[Process], runs: int, wait: float, **more: Sequence[int]
) -> Carried:
    """Tell workers of runs, once each of their threads has carried some before.

    Groups of other processes whose work shall be known may be named.
    """
    from essaim.couriers.celery import CeleryCourier  # noqa: PLC0415 - Celery is heavy
    from essaim.store.journal import SqlJournal  # noqa: PLC0415 - so is SQLAlchemy

    courier = CeleryCourier(SqlJournal(plane.database), plane.broker)
    try:
        carry(plane, courier.wake, "warm", 2 * len(workers) * CONCURRENCY, 0.1)
        with Meter({"workers": [each.pid for each in workers], **more}) as meter:
            seconds = carry(plane, courier.wake, "run", runs, wait)
    finally:
        courier.stop()
    return Carried(runs, seconds, meter)


def carry(plane: Cluster, wake: Callable[[], None], name: str, runs: int, wait: float) -> float:
    """Add runs and wait for the end of all of them; gives the seconds between."""
    import sqlalchemy as sa  # noqa: PLC0415 - heavy

    from essaim.model.runs import NewRun, RunState  # noqa: PLC0415
    from essaim.store.database import db_now  # noqa: PLC0415
    from essaim.store.journal import SqlJournal  # noqa: PLC0415
    from essaim.store.schema import run  # noqa: PLC0415

    database = plane.database
    mine = run.c.id.startswith(f"{name}-")
    ended = sa.select(sa.func.count(), sa.func.max(run.c.finished_at)).where(
        mine, run.c.finished_at.is_not(None)
    )
    began = database.read(lambda c: c.execute(sa.select(db_now())).scalar_one())
    new = [
        NewRun(id=f"{name}-{n}", workflow=WAITS, subject=f"{name}-{n}", input={"seconds": wait})
        for n in range(runs)
    ]
    SqlJournal(database).add(new)
    wake()
    last = 0

    def over() -> bool:
        nonlocal last
        time.sleep(LOOK_EVERY)
        count, last = database.read(lambda c: c.execute(ended).one())
        return bool(count == runs)

    await_(over, f"{runs} runs are over")
    good = sa.select(sa.func.count()).where(mine, run.c.state == RunState.DONE.value)
    done = database.read(lambda c: c.execute(good).scalar_one())
    if done != runs:
        raise CannotRunError(f"only {done} of {runs} runs went well")
    return (last - began) / 1000
