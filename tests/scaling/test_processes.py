"""Replicas that are processes of this computer, behind a real Caddy (R-D8)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from api.rig import wait_for
from essaim.model.errors import RejectedError, TransientError
from essaim.scaling import proc
from essaim.scaling.processes import Processes
from essaim.scaling.upstreams import Caddy
from essaim_lab.computer import free_port
from scaling.proxy import Proxy, answers

TESTS = Path(__file__).parents[1]
SERVER = [sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1"]
STUBBORN = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(9e5)"
)


@pytest.fixture
def make(tmp_path):
    made = []

    def one(command=SERVER, **more) -> Processes:
        made.append(Processes(tmp_path / "replicas", command, grace=0.2, linger=0.0, **more))
        return made[-1]

    yield one
    plain = Processes(tmp_path / "replicas", SERVER, grace=0.2)
    plain.end()
    for each in made:
        each.close()


def records(folder: Path) -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_they_are_started_measured_and_found_again(make, tmp_path):
    processes = make()
    assert processes.list() == []
    processes.add(2)
    found = processes.list()
    both = [each.id for each in found]  # oldest first: of two begun together, either may be
    assert sorted(both) == ["1", "2"]
    assert all(abs(time.time() - each.started_at) < 300 for each in found)
    wait_for(lambda: all(each.cpu_seconds > 0 for each in processes.list()))
    ports = {each["port"] for each in records(tmp_path / "replicas").values()}
    for port in ports:
        wait_for(lambda at=port: answers(f"http://127.0.0.1:{at}/"))
    again = make()  # whoever started them is gone
    assert [each.id for each in again.list()] == both
    again.add(1)
    again.remove(["1", "none"])
    assert [each.id for each in processes.list()] == ["2", "3"]
    wait_for(lambda: again.list() and len(records(tmp_path / "replicas")) == 2)


def test_whoever_starts_them_may_be_killed_at_any_moment(make, tmp_path):
    program = (
        "import os, signal, sys; from pathlib import Path;"
        "from essaim.scaling.processes import Processes;"
        "made = Processes(Path(sys.argv[1]), sys.argv[2:]);"
        "made._await = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
        "made.add(1)"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "replicas"), *SERVER]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    processes = make()
    wait_for(lambda: [each.id for each in processes.list()] == ["1"])


def test_one_that_died_is_forgotten(make, tmp_path):
    processes = make()
    processes.add(1)
    os.kill(records(tmp_path / "replicas")["1"]["pid"], signal.SIGKILL)
    wait_for(lambda: processes.list() == [])
    assert records(tmp_path / "replicas") == {}


def test_another_with_the_same_number_is_left_alone(make, tmp_path):
    """Numbers of processes are given out again; the moment of the start is not."""
    processes = make()
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    now = {"pid": other.pid, "at": 1.0, "port": 0, "leaving": 1.0, "told": 1.0}
    for number, (boot, ticks) in enumerate([(proc.boot(), "1"), ("another boot", "")]):
        started = ticks or proc.look(other.pid).started
        record = {**now, "boot": boot, "started": started}
        (tmp_path / "replicas" / f"{number}.json").write_text(json.dumps(record))
    assert processes.list() == []
    proc.send(other.pid, "1", signal.SIGKILL)
    assert records(tmp_path / "replicas") == {}
    assert other.poll() is None
    other.communicate(b"\n", timeout=60)
    assert other.returncode == 0
    proc.send(other.pid, "1", signal.SIGKILL)  # nobody at all


def test_one_that_does_not_end_is_killed_after_its_grace(make, tmp_path):
    processes = make([sys.executable, "-c", STUBBORN])
    processes.add(1)
    log = tmp_path / "replicas" / "1.log"
    wait_for(lambda: log.read_text() == "1\n")
    pid = records(tmp_path / "replicas")["1"]["pid"]
    processes.remove(["1"])
    assert processes.list() == []  # it counts no longer, though it lives
    wait_for(lambda: not processes.list() and not records(tmp_path / "replicas"))
    assert proc.look(pid) is None


def test_one_that_cannot_start_is_said(make, tmp_path):
    processes = make(["/no/such/program"])
    processes.add(1)  # it was there for a moment
    wait_for(lambda: processes.list() == [])
    assert "No such file" in (tmp_path / "replicas" / "1.log").read_text()
    broken = make(environ={"PYTHONHOME": "/nowhere"})
    with pytest.raises(TransientError, match="did not start"):
        broken.add(1)


# Behind a proxy


def test_caddy_is_told_who_answers_and_told_again_when_it_forgot(make, tmp_path):
    proxy = Proxy(tmp_path)
    with proxy.running():
        processes = make(upstreams=Caddy(proxy.admin))
        processes.add(2)
        wait_for(lambda: processes.list() and proxy.upstreams() == 2)
        assert answers(f"http://127.0.0.1:{proxy.port}/")
        processes.remove(["1"])
        assert proxy.upstreams() == 1  # before it is told to end
        assert answers(f"http://127.0.0.1:{proxy.port}/")
    with pytest.raises(TransientError, match="no answer"):
        processes.list()
    with proxy.running():
        wait_for(lambda: processes.list() and proxy.upstreams() == 1)
        assert answers(f"http://127.0.0.1:{proxy.port}/")
        processes.end()


def test_replicas_listen_where_no_outgoing_connection_could_be(make):
    """Their port is found some time before they listen there."""
    processes = make()
    processes.add(3)
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [record.port for record in processes._records().values()]
    assert len(ports) == 3
    assert all(0 < port < lowest for port in ports)


def test_a_caddy_with_several_proxies_is_told_which(tmp_path):
    proxy = Proxy(tmp_path)
    file = tmp_path / "Caddyfile"
    other = f"http://127.0.0.1:{free_port()} {{\n\treverse_proxy 127.0.0.1:9\n}}\n"
    file.write_text(file.read_text() + other)
    with proxy.running():
        with (
            contextlib.closing(Caddy(proxy.admin)) as caddy,
            pytest.raises(RejectedError) as caught,
        ):
            caddy.show(["127.0.0.1:8"])
        assert "2 reverse proxies" in caught.value.what
        name = caught.value.hint.removeprefix("name one: ").split(" or ")[0]
        with contextlib.closing(Caddy(name)) as caddy:
            caddy.show([])
            assert proxy.upstreams() == 0
            caddy.show(["127.0.0.1:8", "127.0.0.1:7"])
            assert proxy.upstreams() == 2
        nowhere = Caddy(f"{proxy.admin}/id/nothing/upstreams")
        with contextlib.closing(nowhere), pytest.raises(TransientError, match="404"):
            nowhere.show(["127.0.0.1:8"])
