"""An API process of a test, on the loopback."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import pytest

from essaim_lab.computer import free_port

PATIENCE = 120.0
COMMAND = [sys.executable, "-c", "from essaim.cli import main; main()", "api"]


def wait(look: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.1)


class Api:
    """One API process on a port of its own, over the database that the environment names."""

    def __init__(self, environ: Mapping[str, str], log: Path, drain: float = 3) -> None:
        self.port = free_port()
        self.log = log
        # A process that does not end says, when it is aborted, what each of its threads does.
        self._environ = {**environ, "PYTHONFAULTHANDLER": "1"}
        self._words = [*COMMAND, "--port", str(self.port), "--drain", str(drain)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._words, env=self._environ, stdout=log, stderr=log)
        wait(self.ready, f"ready, {self.log}")

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.ask("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def ask(self, path: str) -> httpx.Response:
        return httpx.get(f"http://{self.address}{path}", trust_env=False)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait()
            pytest.fail(f"it does not end by itself:\n{self.log.read_text()}")
