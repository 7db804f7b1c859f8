"""How many steps a second the engine carries when the steps themselves cost nothing."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from essaim_lab.bench.rows import CannotRunError, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from essaim.engine.workflow import Context
    from essaim.model.runs import Event
    from essaim.store.journal import SqlJournal

_STEPS = 5
_TARGET = 500.0
_PATIENCE = 120.0


def measure(*, quick: bool) -> list[Row]:
    """Carry runs of five trivial steps in one process on SQLite, with one thread and with eight."""
    runs = 100 if quick else 600
    return [
        Row(
            what=f"engine: trivial steps, SQLite, {threads} thread{'s' if threads > 1 else ''}",
            value=_steps_per_second(threads, runs),
            unit="/s",
            least=_TARGET,
            more_is_better=True,
            command=f"{runs} runs of {_STEPS} steps, ThreadCourier(engine, threads={threads})",
            note="from adding the runs to the last one written as done",
        )
        for threads in (1, 8)
    ]


def _steps_per_second(threads: int, runs: int) -> float:
    from essaim.store.database import migrate, open_database  # noqa: PLC0415 - SQLAlchemy is heavy
    from essaim.store.journal import SqlJournal  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="essaim-bench-") as name:
        database = open_database(f"sqlite:///{Path(name)}/journal.db")
        try:
            migrate(database)
            seconds = _carry(SqlJournal(database), threads, runs)
        finally:
            database.close()
    return runs * _STEPS / seconds


def _carry(journal: SqlJournal, threads: int, runs: int) -> float:
    from essaim.couriers.threads import ThreadCourier  # noqa: PLC0415
    from essaim.engine.execute import Engine  # noqa: PLC0415
    from essaim.engine.owner import this_owner  # noqa: PLC0415
    from essaim.engine.workflow import Step, Workflow  # noqa: PLC0415
    from essaim.model.runs import NewRun, RunState  # noqa: PLC0415

    steps = tuple(Step(name=f"step-{n}", do=_nothing) for n in range(_STEPS))
    over, count = _counter(runs)
    table = {"trivial": Workflow("trivial", steps)}
    engine = Engine(journal, table, None, owner=this_owner(), emit=count)
    courier = ThreadCourier(engine, threads=threads)
    began = time.perf_counter()
    engine.start([NewRun(id=f"r{n}", workflow="trivial", subject=f"s{n}") for n in range(runs)])
    ended = courier.wait(over, timeout=_PATIENCE)
    seconds = time.perf_counter() - began
    courier.stop()
    done = len(journal.list(states=[RunState.DONE], limit=runs + 1))
    if not ended or done != runs:
        raise CannotRunError(f"{done} of {runs} runs were done after {seconds:.0f} s")
    return seconds


def _nothing(context: Context) -> Mapping[str, Any]:
    return {"attempt": context.attempt}


def _counter(wanted: int) -> tuple[Callable[[], bool], Callable[[Event], None]]:
    """Give a condition that holds once `wanted` runs are done, and the watcher that counts them."""
    lock = threading.Lock()
    done = 0

    def count(event: Event) -> None:
        nonlocal done
        if event.kind == "done":
            with lock:
                done += 1

    return lambda: done >= wanted, count
