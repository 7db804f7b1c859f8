"""Caddy, as it is deployed, before two real API processes: whoever ends, no request fails.

R-D2, R-D7.
"""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import httpx
import pytest

from databases import find
from deploy.files import DEPLOY
from essaim_lab.computer import free_port

PATIENCE = 120.0
CLIENTS = 4
BETWEEN = 0.02
COMMAND = [sys.executable, "-c", "from essaim.cli import main; main()", "api"]


def wait(look, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.1)


class Api:
    """One API process on a port of its own."""

    def __init__(self, environ: dict[str, str], log: Path) -> None:
        self.port = free_port()
        self._environ, self._log = environ, log
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        words = [*COMMAND, "--port", str(self.port), "--drain", "3"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(words, env=self._environ, stdout=log, stderr=log)
        wait(self.ready, self._log.read_text)

    def ready(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.port}/readyz", trust_env=False)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


class Rig:
    """Caddy and two API processes over one database."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        environ = {
            **os.environ,
            "ESSAIM_HOME": str(folder / "home"),
            "ESSAIM_DATABASE": url,
            "ESSAIM_PUBLIC_URL": "https://localhost",
            "ESSAIM_PUBLIC_GATEWAY": "localhost:2222",
        }
        self.apis = [Api(environ, folder / f"api-{number}.log") for number in range(2)]
        self.port, self.admin = free_port(), free_port()
        self.root = folder / "data" / "caddy/pki/authorities/local/root.crt"

    @contextlib.contextmanager
    def running(self) -> Iterator[Rig]:
        for api in self.apis:
            api.start()
        # One more is named than there is, as when the autoscaler may add some.
        upstreams = [api.port for api in self.apis] + [free_port()]
        environ = {
            **os.environ,
            "ESSAIM_SITE": f"https://localhost:{self.port}",
            "ESSAIM_UPSTREAMS": " ".join(f"127.0.0.1:{port}" for port in upstreams),
            "ESSAIM_CADDY_ADMIN": f"localhost:{self.admin}",
            "HOME": str(self.folder),
            "XDG_DATA_HOME": str(self.folder / "data"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
        }
        words = [find("caddy", "caddy"), "run", "--adapter", "caddyfile", "--config"]
        # Its HTTP port is the host's; only what redirects to TLS would need it.
        own = (
            (DEPLOY / "Caddyfile")
            .read_text()
            .replace("{\n", "{\n\tauto_https disable_redirects\n", 1)
        )
        (self.folder / "Caddyfile").write_text(own)
        log = self.folder / "caddy.log"
        with log.open("wb") as output:
            caddy = subprocess.Popen(
                [*words, str(self.folder / "Caddyfile")], env=environ, stdout=output, stderr=output
            )
        try:
            wait(self.answers, "Caddy")
            yield self
        finally:
            for process in (caddy, *(api.process for api in self.apis)):
                process.kill()
                process.wait()

    def client(self) -> httpx.Client:
        trust = ssl.create_default_context(cafile=str(self.root))
        return httpx.Client(
            base_url=f"https://localhost:{self.port}", verify=trust, trust_env=False, timeout=60
        )

    def is_used(self, api: Api) -> bool:
        """Whether Caddy has just given this process something to do."""
        found = httpx.get(f"http://localhost:{self.admin}/reverse_proxy/upstreams", trust_env=False)
        asked = {each["address"]: each["num_requests"] for each in found.json()}
        return asked[f"127.0.0.1:{api.port}"] > 0

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return client.get("/readyz").status_code == 200
        except (httpx.HTTPError, OSError):
            return False


class Load:
    """Clients that look and write all along, while this is open."""

    def __init__(self, rig: Rig) -> None:
        self._rig, self._over = rig, threading.Event()
        self.good, self.bad = [], []
        self._threads = [threading.Thread(target=self._one, args=(n,)) for n in range(CLIENTS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _one(self, number: int) -> None:
        with self._rig.client() as client:
            while not self._over.wait(BETWEEN):
                try:
                    if number % 2:
                        answer = client.get("/openapi.json")
                    else:  # refused, but by the API itself
                        answer = client.post("/api/release", json={"lease": "l-none"})
                except httpx.HTTPError as error:
                    self.bad.append(repr(error))
                    continue
                kept = self.good if answer.status_code in (200, 401) else self.bad
                kept.append((answer.request.method, answer.status_code, answer.text[:200]))

    def goes_on(self, despite: int = 0) -> None:
        """Wait until each of the clients has been answered a few times more."""
        enough = len(self.good) + 40
        wait(lambda: len(self.bad) > despite or len(self.good) >= enough, "answers")


@pytest.fixture(scope="module")
def rig(servers, tmp_path_factory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("caddy"), servers("mariadb").new()).running() as running:
        yield running


def test_both_are_restarted_one_after_the_other_and_no_request_fails(rig):
    with Load(rig) as load:
        for api in rig.apis:
            load.goes_on()
            assert api.end(signal.SIGTERM) == 0
            load.goes_on()
            api.start()
            # Who replaces processes one by one waits until the new one is in use.
            wait(lambda api=api: load.bad or rig.is_used(api), "Caddy uses it again")
        load.goes_on()
    assert load.bad == []


def test_one_is_killed_and_no_look_fails(rig):
    """Caddy asks again what is harmless; a change that the dead had begun is for the client.

    No client has more than one request under way, so no more than one each can be lost.
    """
    with Load(rig) as load:
        load.goes_on()
        rig.apis[0].end(signal.SIGKILL)
        load.goes_on(despite=CLIENTS // 2)
        rig.apis[0].start()
        load.goes_on(despite=CLIENTS // 2)
    assert [each for each in load.bad if each[:2] != ("POST", 502)] == []
    assert len(load.bad) <= CLIENTS // 2


def test_metrics_are_not_for_outside(rig):
    with rig.client() as client:
        assert client.get("/metrics").status_code == 404
