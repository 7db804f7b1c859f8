"""Control planes of two versions over one database, behind the Caddy of the deployment."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from deploy.caddy import Caddy
from essaim_lab.computer import free_port

PATIENCE = 120.0
PROGRAM = Path(__file__).with_name("program.py")
NOW = Path(__file__).parents[2] / "src"


def wait(look: Callable[[], Any], what: str) -> Any:
    """Give what is looked for as soon as it is there, however slow the computer is."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.05)
    return found


class Process:
    """One process of some version; ready when the file or the port says so."""

    def __init__(self, name: str, code: Path, environ: dict[str, str], words: list[str]) -> None:
        self.name, self._code = name, code
        self._log = Path(environ["ESSAIM_HOME"]).parent / f"{name}.log"
        told = {**environ, "PYTHONPATH": str(code), "ESSAIM_READY_FILE": f"{self._log}.ready"}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), *words], env=told, stdout=log, stderr=log
            )

    def said(self) -> str:
        said = self._log.read_text()
        assert self.process.poll() in (None, 0), said
        return said

    def ready(self) -> bool:
        return self.runs() and Path(f"{self._log}.ready").exists()

    def runs(self) -> bool:
        """Whether it has begun, and is of the right version."""
        said = self.said()
        assert said.startswith(f"this is {self._code}/") or "\n" not in said, said
        return bool(said)

    def end(self) -> None:
        """End it as systemd or Docker does."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0, self.said()


class Serving(Process):
    """One that answers HTTP."""

    def __init__(self, name: str, code: Path, environ: dict[str, str], words: list[str]) -> None:
        self.port = free_port()
        super().__init__(name, code, environ, [*words, "--port", str(self.port)])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ready(self) -> bool:
        if not self.runs():
            return False
        try:
            answer = httpx.get(f"http://{self.address}/readyz", trust_env=False)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200


class Plane:
    """Processes that come and go, and Caddy, which stays."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.environ = {
            **os.environ,
            "ESSAIM_HOME": str(folder / "home"),
            "ESSAIM_DATABASE": url,
            "ESSAIM_SIGNUP": "open",  # as the first release was
            "ESSAIM_INTERVAL": "3600",  # nobody is lost because this computer is slow
        }
        self.environ.pop("ESSAIM_BROKER", None)
        self.running: dict[str, Process] = {}
        self._caddy = Caddy(folder)

    def serve(self, code: Path, *names: str) -> str:
        """Start all in one, as the first release had it; give the password that one shows."""
        for name in names:
            words = ["serve", "--gateway-port", str(free_port())]
            self.running[name] = Serving(name, code, self.environ, words)
        self.ready(*names)
        said = [self.running[name].said for name in names]
        wait(lambda: all("Ctrl-C" in each() for each in said), "they have said all")
        return re.search(r"shown only now: (\S+)", "".join(each() for each in said))[1]

    def start_api(self, name: str) -> None:
        self.running[name] = Serving(name, NOW, self.environ, ["api", "--drain", "3"])

    def start_controller(self, name: str) -> None:
        self.running[name] = Process(name, NOW, self.environ, ["controller"])

    def ready(self, *names: str) -> None:
        """Wait until they are, or until all are that run."""
        for name in names or self.running:
            wait(self.running[name].ready, f"{name} is ready")

    def end(self, name: str) -> None:
        self.running.pop(name).end()

    # -- Caddy ----------------------------------------------------------------------------------

    def _upstreams(self, without: str = "") -> list[str]:
        serving = {name: each for name, each in self.running.items() if isinstance(each, Serving)}
        return [each.address for name, each in serving.items() if name != without]

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Let Caddy stand before what runs."""
        try:
            self._caddy.start(self._upstreams())
            yield
        finally:
            self._caddy.kill()
            for each in self.running.values():
                each.process.kill()
                each.process.wait()

    def rotate(self, without: str = "") -> None:
        """Let Caddy use what runs, except one; ends when that one has no request any more."""
        self._caddy.reload(self._upstreams(without))
        gone = self.running.get(without)
        if isinstance(gone, Serving):
            wait(lambda: not self._caddy.requests(gone.address), f"{without} has nothing to do")

    def client(self) -> httpx.Client:
        """One that makes a connection for each request, as commands and agents do."""
        return self._caddy.client("/api/", keep=0)
