"""A process ends when it is told to, also while its database neither answers nor refuses.

R-D7.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from deploy.api import PATIENCE, Api


class Frozen:
    """A database server that can be stopped in the midst of everything."""

    def __init__(self, url: str) -> None:
        self.url = url
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            where = connection.exec_driver_sql("SELECT @@pid_file").scalar_one()
        engine.dispose()
        self._pid = int(Path(where).read_text())

    def freeze(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._pid, signal.SIGCONT)


@pytest.fixture
def database(servers) -> Iterator[Frozen]:
    server = Frozen(servers("mariadb").new())
    yield server
    server.thaw()


@pytest.fixture
def api(database, tmp_path) -> Iterator[Api]:
    environ = {
        **os.environ,
        "ESSAIM_HOME": str(tmp_path / "home"),
        "ESSAIM_DATABASE": database.url,
        "ESSAIM_PUBLIC_URL": "https://localhost",
    }
    process = Api(environ, tmp_path / "api.log", drain=0)
    try:
        process.start()
        yield process
    finally:
        process.kill()


def test_it_does_not_wait_for_a_frozen_database(api, database):
    database.freeze()
    assert api.end(signal.SIGTERM) == 0, api.log.read_text()
    assert "others will see by themselves" in api.log.read_text()


#: A part leaves a thread that waits for ever, as for a request that a frozen database has taken.
LEAVES = """
import signal, threading
from essaim.bootstrap import App
from essaim.cli import processes
from essaim.cli.processes import live, start_log

class Part:
    def start(self):
        threading.Thread(target=threading.Event().wait, name="waits").start()

    def stop(self):
        pass

def said():
    signal.raise_signal(signal.SIGTERM)
    return "ready"

start_log("part")
processes.EXIT_WITHIN = 1.0
live(App(kind="part"), [Part()], said=said)
"""


def test_a_thread_that_waits_for_ever_does_not_keep_it(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LEAVES],
        env={**os.environ, "ESSAIM_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "stopped\n" in done.stderr
    assert "in wait\n" in done.stderr, done.stderr
