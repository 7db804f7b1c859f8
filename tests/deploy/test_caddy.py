"""Caddy, as it is deployed, before two real API processes: whoever ends, no request fails.

R-D2, R-D7.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import httpx
import pytest

from deploy.api import Api, wait
from deploy.caddy import Caddy
from essaim_lab.computer import free_port

CLIENTS = 4
BETWEEN = 0.02
ROUND = 40  #: answers


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
        # Long enough for Caddy, which asks every second, to notice on a busy computer too.
        drain = 10
        self.apis = [Api(environ, folder / f"api-{number}.log", drain) for number in range(2)]
        self._caddy = Caddy(folder)
        self.client = self._caddy.client

    @contextlib.contextmanager
    def running(self) -> Iterator[Rig]:
        try:
            for api in self.apis:
                api.start()
            # One more is named than there is, as when the autoscaler may add some.
            self._caddy.start([*(api.address for api in self.apis), f"127.0.0.1:{free_port()}"])
            yield self
        finally:
            self._caddy.kill()
            for api in self.apis:
                api.kill()

    def is_used(self, api: Api) -> bool:
        """Whether Caddy has just given this process something to do."""
        return self._caddy.requests(api.address) > 0


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

    def goes_on(self) -> bool:
        """Wait for some answers more, or a failure; whether all went well."""
        enough, known = len(self.good) + ROUND, len(self.bad)
        wait(lambda: len(self.bad) > known or len(self.good) >= enough, "answers")
        return len(self.bad) == known


@pytest.fixture(scope="module")
def rig(servers, tmp_path_factory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("caddy"), servers("mariadb").new()).running() as running:
        yield running


def test_both_are_restarted_one_after_the_other_and_no_request_fails(rig):
    with Load(rig) as load:
        for api in rig.apis:
            load.goes_on()
            assert api.end(signal.SIGTERM) == 0, api.log.read_text()
            load.goes_on()
            api.start()
            # Who replaces processes one by one waits until the new one is in use.
            wait(lambda api=api: load.bad or rig.is_used(api), "Caddy uses it again")
        load.goes_on()
    assert load.bad == []


def test_one_is_killed_and_no_look_fails(rig):
    """Caddy asks again what is harmless; a change that may have reached the dead is for the client.

    That is each change on a connection of the dead that Caddy has not yet seen to be closed: a few,
    for it makes no new ones.
    """
    with Load(rig) as load:
        load.goes_on()
        rig.apis[0].end(signal.SIGKILL)
        wait(load.goes_on, "all that is asked is answered by the other")
        lost = list(load.bad)
        assert load.goes_on()
        rig.apis[0].start()
        assert load.goes_on()
        assert load.goes_on()
    assert [each for each in lost if each[:2] != ("POST", 502)] == []
    assert load.bad == lost


def test_metrics_are_not_for_outside(rig):
    with rig.client() as client:
        assert client.get("/metrics").status_code == 404
