"""`essaim autoscale` as it is started: API processes behind a real Caddy, under load (R-D8)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading

import httpx
import pytest

from api.rig import wait_for
from cli.person import COMMAND, Person
from scaling.proxy import Proxy, answers

#: Quick, and content with little: this computer may be busy with other things.
QUICK = [
    *("--min", "1", "--max", "2", "--target", "0.05", "--interval", "0.5", "--rise", "1"),
    *("--fall", "4", "--cooldown", "2", "--warm-up", "4"),
]


@pytest.fixture
def home(tmp_path):
    """Somebody whose database is a file of their own."""
    person = Person(tmp_path / "home")
    person.env |= {"ESSAIM_HOME": str(tmp_path / "state"), "ESSAIM_DRAIN": "0"}
    yield person
    scaled = tmp_path / "state" / "replicas"
    for record in scaled.glob("*/*.json"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)


@contextlib.contextmanager
def scaling(person: Person, *words: str):
    """An autoscaler, told to end in the end, which it must do well."""
    log = person.home / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*COMMAND, "autoscale", *QUICK, *words], env=person.env, stdout=out, stderr=out
        )
    try:
        yield
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait(60)


@contextlib.contextmanager
def load(url: str):
    """Somebody who asks all the time."""
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=60) as client:
            while not ended.is_set():
                # Caddy hangs up on idle clients when it is told of others: who looks, looks again.
                # Who was just asking hears of it in one of several ways.
                with contextlib.suppress(httpx.TransportError):
                    client.get(url)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(120)


def test_replicas_follow_the_load_and_status_says_why(home, tmp_path):
    proxy = Proxy(tmp_path)
    assert "nothing has been scaled" in home.types("autoscale", "status").stderr
    with proxy.running():
        url = f"http://127.0.0.1:{proxy.port}/healthz"
        with scaling(home, "--caddy", proxy.admin):
            wait_for(lambda: proxy.upstreams() == 1 and answers(url), 120)
            with load(url):
                wait_for(lambda: proxy.upstreams() == 2, 120)
            wait_for(lambda: proxy.upstreams() == 1, 120)
            # One that is too busy to say that it lives does not count for a moment.
            wait_for(lambda: "scaled by process" in home.does("autoscale", "status"))
        # It has ended, and what it started goes on.
        assert answers(url)
        text = home.does("autoscale", "status")
        assert "nobody scales it now" in text
        assert "1 → 2" in text
        assert "2 → 1" in text
        (told,) = home.gets("autoscale", "status")
        assert told["scaled_by"] is None
        assert [each["wanted"] for each in told["changes"]][-2:] == [1, 2]
        # The next one finds them, and ends them with itself when told so.
        with scaling(home, "--caddy", proxy.admin, "--end-together"):
            wait_for(lambda: home.gets("autoscale", "status")[0]["scaled_by"])
        assert not list((tmp_path / "state/replicas/api").glob("*.json"))


def controllers(person: Person) -> list[int]:
    """The processes of the controllers that are scaled."""
    folder = person.home.parent / "state" / "replicas" / "controller"
    found = []
    for record in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            found.append(json.loads(record.read_text())["pid"])
    return sorted(found)


def test_controllers_are_scaled_beside_the_api_within_limits_of_their_own(home, tmp_path):
    """R-D8, R-D7: what is never idle enough for one controller is given a second one."""
    home.env |= {"ESSAIM_INTERVAL": "0.01"}  # they look all the time
    proxy = Proxy(tmp_path)
    with proxy.running():
        words = ["--caddy", proxy.admin, "--max", "1", "--controllers", "1-2", "--end-together"]
        with scaling(home, *words):
            wait_for(lambda: proxy.upstreams() == 1, 120)
            wait_for(lambda: len(controllers(home)) == 2, 120)
            both = controllers(home)
            # One that dies is replaced.
            os.kill(both[0], signal.SIGKILL)
            wait_for(lambda: len(controllers(home)) == 2 and both[0] not in controllers(home), 120)
            assert proxy.upstreams() == 1
            text = home.does("autoscale", "status")
            host = socket.gethostname()
            assert f"api@{host}: " in text
            assert f"controller@{host}: " in text
            assert "1 → 2" in text
            most = "but 2 is the most there may be"
            wait_for(lambda: most in home.does("autoscale", "status"), 120)
        assert controllers(home) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--controllers", "many"], "MIN-MAX"),
        (["--controllers", "3-2"], "must not be less"),
        (["--service", "controller", "--controllers", "1-2"], "--min and --max"),
        (["--min", "3", "--max", "2"], "must not be less"),
        (["--target", "0.99"], "at most"),
        (["--service", "nothing"], "api or controller or worker"),
        (["--fall", "1"], "quicker"),
    ],
)
def test_what_cannot_be_meant_is_refused(home, words, said):
    assert said in " ".join(home.does("autoscale", *words, code=2).split())
