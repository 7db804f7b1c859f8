"""The processes of a control plane, started as in a deployment; all of them end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from essaim_lab import computer
from essaim_lab.bench.rows import CannotRunError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from essaim.store.database import Database

PATIENCE = 120.0
PAUSE = 0.05
#: The command, and the same with machines that cost nothing and a workflow that waits.
ESSAIM = (sys.executable, "-P", "-c", "from essaim.cli import main; main()")
FREE = (sys.executable, "-m", "essaim_lab.bench.program")
OK = 200
#: No node goes stale and no check is due while something is measured.
INTERVAL = 3600.0
_LAST_LINES = 15


class Process:
    """One process; what it says goes to a file."""

    def __init__(self, command: list[str], environ: dict[str, str], log: Path) -> None:
        self.words, self._environ, self._log = command, environ, log
        self.start()

    def start(self) -> None:
        """Start it, or start it again once it has ended."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self.words, env=self._environ, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.code is None

    @property
    def said(self) -> str:
        """All that it said."""
        return self._log.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """Its exit code; None while it lives."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if self.lives:
            self._process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> int:
        """Send a signal and wait for the end; gives the exit code."""
        self.send(number)
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def await_(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds; CannotRunError with its last words when it ends before."""
        await_(lambda: not self.lives or holds(), what)
        if not self.lives:
            said = self.said.splitlines()[-_LAST_LINES:]
            raise CannotRunError("\n    ".join([f"{what}: the process ended", *said]))


class Api(Process):
    """An API process with a port of its own."""

    def __init__(self, command: list[str], environ: dict[str, str], log: Path) -> None:
        self.port = computer.free_port()
        super().__init__([*command, "--port", str(self.port)], environ, log)

    def ready(self) -> bool:
        """Whether it says that it can serve."""
        with (
            suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer,
        ):
            return bool(answer.status == OK)
        return False

    def await_ready(self) -> None:
        """Wait until it serves."""
        self.await_(self.ready, "an API process serves")


class Cluster:
    """Processes over one database and, if there is one, one broker."""

    def __init__(self, home: Path, url: str, broker: str) -> None:
        from essaim.store.database import open_database  # noqa: PLC0415 - SQLAlchemy is heavy
        from essaim.store.migrate import migrate  # noqa: PLC0415

        self.home, self.broker = home, broker
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("ESSAIM_")}
        self.environ = {
            **inherited,
            "ESSAIM_HOME": str(home / "state"),
            "ESSAIM_DATABASE": url,
            "ESSAIM_BROKER": broker,
            "ESSAIM_INTERVAL": str(INTERVAL),
        }
        self.database: Database = open_database(url)
        migrate(self.database)
        self._processes: list[Process] = []

    def begin(self, *words: str, free: bool = False, **environ: str) -> Process:
        """Start a command that goes on; with `free` its machines cost nothing."""
        command = [*(FREE if free else ESSAIM), *words]
        made = Process(command, {**self.environ, **environ}, self._new_log(words[0]))
        self._processes.append(made)
        return made

    def apis(self, count: int, *words: str) -> list[Api]:
        """Start so many API processes; they serve."""
        made: list[Api] = []
        for _ in range(count):
            api = Api([*ESSAIM, "api", *words], self.environ, self._new_log("api"))
            self._processes.append(api)
            made.append(api)
            # The first of all makes the keys; the others start together.
            if len(made) == 1:
                api.await_ready()
        for api in made:
            api.await_ready()
        return made

    def workers(self, count: int, concurrency: int, **environ: str) -> list[Process]:
        """Start so many workers; all of them read their queue."""
        from essaim.couriers.celery import celery_app  # noqa: PLC0415 - Celery is heavy

        words = ("worker", "--concurrency", str(concurrency))
        made = [self.begin(*words, free=True, **environ) for _ in range(count)]
        app = celery_app(self.broker)
        wanted = sum(each.lives for each in self._processes if "worker" in each.words)
        try:
            for each in made:
                each.await_(
                    lambda: len(app.control.ping(timeout=1.0, limit=wanted)) >= wanted,
                    "workers answer",
                )
        finally:
            app.close()
        return made

    def end(self) -> None:
        """End every process: nothing of them is wanted any more."""
        for process in self._processes:
            process.end()

    def close(self) -> None:
        """End all of it."""
        self.end()
        self.database.close()

    def _new_log(self, name: str) -> Path:
        return self.home / f"{name}-{len(self._processes)}.log"


@contextmanager
def cluster(url: str, broker: str = "") -> Iterator[Cluster]:
    """Give a control plane without processes on an empty database."""
    with tempfile.TemporaryDirectory(prefix="essaim-bench-") as home:
        made = Cluster(Path(home), url, broker)
        try:
            yield made
        finally:
            made.close()


def await_(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds; CannotRunError when it does not in time."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise CannotRunError(f"{what}: not within {PATIENCE:.0f} s")
        time.sleep(PAUSE)
