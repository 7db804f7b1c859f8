"""Several processes with several threads each, on one journal."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from essaim.couriers.threads import ThreadCourier
from essaim.engine.execute import Engine
from essaim.engine.owner import this_owner
from essaim.engine.workflow import Context, Step, Workflow
from essaim.model.runs import Again, NewRun, RunState
from essaim.store.database import open_database
from essaim.store.journal import SqlJournal

RUNS = [f"r{number}" for number in range(40)]
CAPACITY = 2


class Place:
    """A folder that notices when two are at the same thing at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def alone(self, name: str) -> Path:
        path = self.folder / f"busy={name}"
        path.touch(exist_ok=False)  # raises when another is in here
        return path

    def count(self, name: str) -> None:
        with (self.folder / "log").open("a") as log:
            log.write(f"{name}\n")


def first(context: Context) -> Again | None:
    mark = context.tools.alone(context.run.id)
    try:
        seen = context.tools.folder / f"seen={context.run.id}"
        if not seen.exists():
            seen.touch()
            return Again(0.01)
    finally:
        mark.unlink()
    context.tools.count(f"first {context.run.id}")
    return None


def second(context: Context) -> None:
    inside = context.tools.alone(f"slot={context.run.id}")
    others = list(context.tools.folder.glob("busy=slot=*"))
    context.tools.count(f"second {context.run.id}")
    inside.unlink()
    assert len(others) <= CAPACITY, others


WORKFLOWS = {
    "w": Workflow(
        "w",
        (
            Step(name="first", do=first),
            Step(name="second", do=second, slot=lambda _run: "second"),
        ),
    )
}


def work(url: str, folder: str) -> None:
    """What each process does: work until everything is over."""
    database = open_database(url)
    journal = SqlJournal(database)
    engine = Engine(
        journal,
        WORKFLOWS,
        Place(Path(folder)),
        owner=this_owner(),
        slots=lambda _name: CAPACITY,
    )
    courier = ThreadCourier(engine, threads=4)
    assert courier.wait(lambda: journal.next_due() is None, timeout=120)
    assert courier.stop()
    database.close()


def test_each_step_is_done_once_by_one_of_many(url, tmp_path):
    database = open_database(url)
    journal = SqlJournal(database)
    journal.add([NewRun(id=key, workflow="w", subject="s") for key in RUNS])
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r});"
        "from engine.test_many import work; work(*sys.argv[1:])"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", program, url, str(tmp_path)]) for _ in range(3)
    ]
    assert [worker.wait(120) for worker in workers] == [0, 0, 0]
    assert {run.state for run in journal.list()} == {RunState.DONE}, [
        run.error for run in journal.list()
    ]
    done = Counter((tmp_path / "log").read_text().split("\n")[:-1])
    assert done == Counter(f"{step} {key}" for step in ("first", "second") for key in RUNS)
    database.close()
