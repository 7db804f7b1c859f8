"""A controller or the autoscaler is killed: seconds until another does its work."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from essaim_lab.bench import processes, seeding, services
from essaim_lab.bench.cluster import Cluster, Process, await_, cluster
from essaim_lab.bench.program import ELSEWHERE, WAITS
from essaim_lab.bench.rows import Row
from essaim_lab.bench.timing import adopting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

MOST = 10.0
ROUNDS = 3
#: Leases that end one after another while controllers are killed, and seconds between two ends.
LEASES, APART = 60, 0.25
#: Seconds until the first controller is killed, and until the second, when the first is back.
KILLS = (1.0, 7.0)
#: Longer than anybody waits: whoever holds such a run holds it until it dies.
LONG = 3600.0
AUTOSCALE = ("autoscale", "--service", "api", "--min", "1", "--max", "1")


def measure(*, quick: bool) -> Iterator[Row]:
    """Kill them, several times each; the longest counts."""
    rounds = 1 if quick else ROUNDS
    leases, kills = (20, (1.0, 3.0)) if quick else (LEASES, KILLS)
    with services.postgresql_server() as server, services.redis_server() as broker:
        late = controllers(server.new("essaim_controllers"), broker.url, leases, kills)
        yield _row("a lease that ends: its release is begun", late, "controller", most=MOST)
        for where, host in (("here", ""), ("on another computer", "elsewhere")):
            name = f"essaim_autoscale_{'away' if host else 'here'}"
            took = autoscaler(server.new(name), rounds, host)
            yield _row(
                f"a stand-by {where} has replaced an API process", took, "autoscale", most=MOST
            )
        if not quick:
            took = worker(server.new("essaim_worker"), broker.url)
            yield _row("a run that it carried is carried on", took, "worker", most=None)


def controllers(url: str, broker: str, leases: int, kills: Sequence[float]) -> list[float]:
    """Kill one of two controllers, then the other, at these seconds; how late releases began."""
    with cluster(url, broker) as plane:
        pair = [plane.begin("controller", free=True) for _ in range(2)]
        plane.workers(1, 8)
        for each in pair:
            _await_alive(plane, each)
        _rent(plane, leases)
        began = time.monotonic()
        ends = _let_end(plane)
        for number, at in enumerate(kills):
            each = pair[number % len(pair)]
            time.sleep(max(0.0, began + at - time.monotonic()))
            each.end(signal.SIGKILL)
            if number + 1 < len(kills):
                each.start()
                _await_alive(plane, each)
        return _lateness(plane, ends)


def autoscaler(url: str, rounds: int, host: str = "") -> list[float]:
    """Kill the acting autoscaler and its one replica; gives when there is another replica.

    With `host` the stand-by believes to be on a computer of that name.
    """
    with cluster(url) as plane, _replicas(plane) as seen:
        acting = plane.begin(*AUTOSCALE, free=True)
        acting.await_(lambda: bool(seen()), "the autoscaler starts a process")
        took = []
        for number in range(rounds):
            before = seen()
            pretends = {ELSEWHERE: f"{host}-{number}"} if host else {}
            stand_by = plane.begin(*AUTOSCALE, free=True, **pretends)
            stand_by.await_(lambda: "ready" in stand_by.said, "a stand-by is ready")  # noqa: B023 - called at once
            began = time.monotonic()
            acting.end(signal.SIGKILL)
            _kill(before)
            stand_by.await_(lambda: bool(seen() - before), "the stand-by starts a process")  # noqa: B023 - called at once
            took.append(time.monotonic() - began)
            acting = stand_by
        return took


def worker(url: str, broker: str) -> list[float]:
    """Kill the worker that carries a run; gives when another has taken it up."""
    from essaim.model.runs import NewRun  # noqa: PLC0415 - loaded when it is needed
    from essaim.store.journal import SqlJournal  # noqa: PLC0415 - SQLAlchemy is heavy

    with cluster(url, broker) as plane:
        pair = plane.workers(2, 1)
        journal = SqlJournal(plane.database)
        journal.add([NewRun(id="long", workflow=WAITS, subject="long", input={"seconds": LONG})])

        def epoch() -> int:
            run = journal.get("long")
            return run.epoch if run else 0

        await_(lambda: epoch() == 1, "a worker takes the run")
        run = journal.get("long")
        owner = run.owner if run else ""
        began = time.monotonic()
        for each in pair:
            if f":{each.pid}:" in owner:
                each.end(signal.SIGKILL)
        await_(lambda: epoch() > 1, "another worker takes the run")
        return [time.monotonic() - began]


def _row(what: str, seconds: Sequence[float], command: str, most: float | None) -> Row:
    return Row(
        what=f"essaim {command} killed: {what}", value=max(seconds), unit="s", most=most,
        command=f"essaim {command}, twice; kill -9; PostgreSQL",
        note=", ".join(f"{each:.2f}" for each in sorted(seconds)[-10:]),
    )  # fmt: skip


# -- controllers --------------------------------------------------------------------------------


def _await_alive(plane: Cluster, process: Process) -> None:
    from essaim.store.workers import Workers  # noqa: PLC0415

    workers = Workers(plane.database)
    process.await_(
        lambda: process.pid in {each.pid for each in workers.alive()}, "a controller is ready"
    )


def _rent(plane: Cluster, count: int) -> None:
    """Have so many leases that are active."""
    from essaim.model.fleet import LeaseState, Wish  # noqa: PLC0415
    from essaim.store.leases import Leases  # noqa: PLC0415
    from essaim.store.people import People  # noqa: PLC0415

    seeding.people(plane.database, ["renter"], "no hash")
    seeding.nodes(plane.database, count)
    found = People(plane.database).find("renter")
    leases = Leases(plane.database)
    for _ in range(count):
        leases.rent(found[0].id if found else "", Wish(), seeding.KEY)
    active = [LeaseState.ACTIVE]
    await_(lambda: len(leases.list(states=active, limit=count)) == count, "leases are active")


def _let_end(plane: Cluster) -> dict[str, int]:
    """Let every lease end at a moment of its own, soon; gives these moments."""
    import sqlalchemy as sa  # noqa: PLC0415 - heavy

    from essaim.store.database import db_now  # noqa: PLC0415
    from essaim.store.schema import lease  # noqa: PLC0415

    def body(connection: sa.Connection) -> dict[str, int]:
        now = connection.execute(sa.select(db_now())).scalar_one()
        ids = connection.execute(sa.select(lease.c.id).order_by(lease.c.id)).scalars().all()
        ends = {key: int(now + 1000 * APART * (n + 1)) for n, key in enumerate(ids)}
        for key, at in ends.items():
            connection.execute(sa.update(lease).where(lease.c.id == key).values(expires_at=at))
        return ends

    return plane.database.write(body)


def _lateness(plane: Cluster, ends: dict[str, int]) -> list[float]:
    import sqlalchemy as sa  # noqa: PLC0415

    from essaim.store.schema import lease, run  # noqa: PLC0415

    releases = run.c.workflow == "release"
    over = sa.select(sa.func.count()).where(lease.c.ended_at.is_not(None))
    began = sa.select(run.c.subject, run.c.created_at).where(releases)
    database = plane.database
    await_(
        lambda: database.read(lambda c: c.execute(over).scalar_one()) == len(ends),
        "all leases have ended",
    )
    rows = database.read(lambda c: c.execute(began).all())
    return [(row.created_at - ends[row.subject]) / 1000 for row in rows]


# -- the autoscaler's replicas ------------------------------------------------------------------


@contextmanager
def _replicas(plane: Cluster) -> Iterator[Callable[[], set[int]]]:
    """Give a look at the processes that autoscalers have started; they end with it."""
    folder = plane.home / "state" / "replicas" / "api"

    def seen() -> set[int]:
        found = set()
        for file in folder.glob("*.json"):
            with suppress(OSError, ValueError):  # it may be replaced while this looks
                found.add(int(json.loads(file.read_text())["pid"]))
        return found

    # They outlive whoever started them, and become children of this process then.
    with adopting():
        before = processes.children_of(os.getpid())
        try:
            yield seen
        finally:
            plane.end()
            _kill(processes.children_of(os.getpid()) - before)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
