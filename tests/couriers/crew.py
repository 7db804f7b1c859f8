"""Worker processes, started as a person would start them, and the journal they share."""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from essaim.couriers.celery import CeleryCourier
from essaim.model.runs import NewRun
from essaim.store.database import Database, migrate, open_database
from essaim.store.journal import SqlJournal
from essaim.store.workers import Workers

PATIENCE = 90.0
PROGRAM = Path(__file__).parent / "program.py"


class Process:
    """One process of the control plane, with all that it said."""

    def __init__(self, command: list[str], environ: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, env=dict(environ), stdout=output, stderr=output, start_new_session=True
            )
        self.pid = self._process.pid

    @property
    def said(self) -> str:
        return self._log.read_text()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait(PATIENCE)

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        if self.runs:
            self._process.kill()
            self._process.wait()


class Crew:
    """One database, one broker, and workers that come and go."""

    def __init__(self, database_url: str, broker_url: str, place: Path) -> None:
        self.place = place
        self.folder = place / "traces"
        self.folder.mkdir()
        self.broker_url = broker_url
        self.database: Database = open_database(database_url)
        migrate(self.database)
        self.journal = SqlJournal(self.database)
        self.workers = Workers(self.database)
        self.courier = CeleryCourier(self.journal, broker_url, again=1.0)
        self.environ = {
            **os.environ,
            "ESSAIM_DATABASE": database_url,
            "ESSAIM_BROKER": broker_url,
            "ESSAIM_HOME": str(place / "home"),
            "PYTHONPATH": str(PROGRAM.parents[1]),  # where its helpers are
            "PYTHONWARNINGS": "default",
        }
        self._processes: list[Process] = []

    def types(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        command = [sys.executable, str(PROGRAM), *words]
        return subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    def begin(self, *words: str, lease: float = 15.0) -> Process:
        """Start a command that goes on."""
        log = self.place / f"process-{len(self._processes)}.log"
        environ = {**self.environ, "LEASE": str(lease)}
        made = Process([sys.executable, str(PROGRAM), *words], environ, log)
        self._processes.append(made)
        return made

    def worker(self, *words: str, lease: float = 15.0) -> Process:
        """Start a worker; it is ready when it has said that it lives and reads its queue."""
        made = self.begin("worker", *words, lease=lease)
        self.until(lambda: made.pid in self.alive() or not made.runs)
        assert made.runs, made.said
        return made

    def alive(self) -> set[int]:
        return {each.pid for each in self.workers.alive()}

    def add(self, *keys: str, workflow: str = "short", site: str = "") -> None:
        """Add runs without telling anybody."""
        self.journal.add(
            [
                NewRun(
                    id=key,
                    workflow=workflow,
                    subject=key,
                    site=site,
                    input={"folder": str(self.folder)},
                )
                for key in keys
            ]
        )

    def states(self, *keys: str) -> list[str]:
        return [self.journal.get(key).state.value for key in keys]

    def finish(self, *keys: str) -> None:
        self.until(lambda: set(self.states(*keys)) == {"done"})

    def traces(self) -> collections.Counter[tuple[str, str]]:
        """How often each step of each run was done."""
        names = [path.name.split("=") for path in self.folder.iterdir() if "=" in path.name]
        return collections.Counter((run, step) for run, step, _pid, _token in names)

    def doers(self, key: str) -> set[int]:
        """Which processes did steps of a run."""
        names = [path.name.split("=") for path in self.folder.iterdir() if "=" in path.name]
        return {int(pid) for run, _step, pid, _token in names if run == key}

    def freeze(self, process: Process) -> None:
        """Freeze a worker that lingers in a step; it has nothing locked meanwhile."""
        (self.folder / f"freeze-{process.pid}").touch()
        status = Path(f"/proc/{process.pid}/status")
        self.until(lambda: "State:\tT" in status.read_text())

    def go(self) -> None:
        (self.folder / "go").touch()

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > deadline:
                said = "\n".join(each.said for each in self._processes)
                raise AssertionError(f"not within {PATIENCE} s; the processes said:\n{said}")
            time.sleep(0.05)

    def close(self) -> None:
        for process in self._processes:
            process.end()
        self.courier.stop()
        self.database.close()
