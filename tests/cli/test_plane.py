"""Each part of a control plane runs alone, all run together, and all of them end."""

from __future__ import annotations

import contextlib
import socket
import threading

import httpx
import pytest

from essaim.bootstrap import App
from essaim.cli import plane
from essaim.cli.plane import ApiServer, Controllers, GatewayServer, Plane, listening
from essaim.controllers import table
from essaim.model.errors import SetupError
from essaim.usecases.credentials import digest, new_token

PATIENCE = 90.0
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx1rKqXl7"
NOWHERE = ("127.0.0.1", 0)


@pytest.fixture
def app(tmp_path):
    made = App({"ESSAIM_HOME": str(tmp_path / "home"), "ESSAIM_CACHE": str(tmp_path / "cache")})
    made.own_only = False
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_threads_left():
    yield
    parts = ("essaim-api", "essaim-gateway", "essaim-stop", "essaim-health", "essaim-queue")
    assert not [one.name for one in threading.enumerate() if one.name in parts]


@contextlib.contextmanager
def running(part):
    part.start()
    try:
        yield part
    finally:
        part.stop()


def base(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def banner(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as sock:
        sock.settimeout(PATIENCE)
        return sock.recv(64)


def test_all_parts_run_in_one_process_and_stop(app):
    api = listening(*NOWHERE)
    at = base(api)
    with running(Plane(app, api=[api], gateway=NOWHERE)) as all_of_it:
        assert httpx.get(f"{at}/readyz", timeout=PATIENCE).status_code == 200
        port = all_of_it.gateway.port
        assert banner(port).startswith(b"SSH-2.0-Essaim")
        assert all_of_it.gateway_key.startswith("ssh-ed25519 ")
        assert app.ways.here is all_of_it.gateway
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{at}/readyz", timeout=PATIENCE)
    with pytest.raises(ConnectionRefusedError):
        banner(port)
    all_of_it.stop()  # a second time it has nothing to do


def test_machines_on_a_network_of_their_own_are_told_another_gateway(app):
    api, inside = listening(*NOWHERE), listening(*NOWHERE)
    agents = [(inside, ("10.79.0.1", 2222))]
    token = new_token("enrol")
    app.fleet.enrol(digest(token), uses=2, seconds=600)
    machine = {"token": token, "cores": 1, "memory": 256, "tunnel": True, "tunnel_key": KEY}
    with running(Plane(app, api=[api], gateway=NOWHERE, told=("lab.test", 22), agents=agents)):
        told = []
        for number, way in enumerate((api, inside)):
            body = {**machine, "name": f"pc-{number}", "host_key": f"{KEY[:-1]}{number}"}
            answer = httpx.post(
                f"{base(way)}/api/workers/register", json=body, timeout=PATIENCE
            ).json()
            told.append((answer["gateway"]["host"], answer["gateway"]["port"]))
    assert told == [("lab.test", 22), ("10.79.0.1", 2222)]


def test_a_taken_port_ends_what_had_begun(app):
    with listening(*NOWHERE) as taken, listening(*NOWHERE) as api:
        made = Plane(app, api=[api], gateway=("127.0.0.1", taken.getsockname()[1]))
        with pytest.raises(SetupError, match="cannot listen"):
            made.start()
        made.stop()


def test_the_api_runs_alone_and_tells_where_the_gateway_is(app):
    api = listening(*NOWHERE)
    at = base(api)
    with running(ApiServer(app, [api], gateway=("gateway.example", 2222))):
        assert httpx.get(f"{at}/healthz", timeout=PATIENCE).status_code == 200
        assert "def main" in httpx.get(f"{at}/agent.py", timeout=PATIENCE).text


def test_the_api_stops_although_somebody_asks_without_end(app, monkeypatch):
    monkeypatch.setattr(plane, "ANSWER_WITHIN", 1)
    api = listening(*NOWHERE)
    port = api.getsockname()[1]
    with socket.socket() as slow:
        with running(ApiServer(app, [api], gateway=NOWHERE)):
            slow.settimeout(PATIENCE)
            slow.connect(("127.0.0.1", port))
            slow.sendall(b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=PATIENCE)
        with contextlib.suppress(ConnectionError):
            while slow.recv(65536):
                pass


def test_the_gateway_runs_alone(app):
    with running(GatewayServer(app, NOWHERE)) as alone:
        assert banner(alone.gateway.port).startswith(b"SSH-2.0-Essaim")
        assert app.ways.here is alone.gateway


def test_the_gateways_policy_is_a_setting(tmp_path):
    app = App({"ESSAIM_HOME": str(tmp_path), "ESSAIM_FORWARDING": "everything"})
    with pytest.raises(SetupError, match="ESSAIM_FORWARDING"):
        GatewayServer(app, NOWHERE)
    app.close()


def test_the_controllers_run_alone(app):
    with running(Controllers(app)):
        names = {one.name for one in threading.enumerate()}
        assert {"essaim-health", "essaim-queue"} <= names


class Busy:
    """A controller that does not come back."""

    name = "busy"

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def reconcile(self) -> float:
        self.begun.set()
        self.over.wait(PATIENCE)
        return PATIENCE


def test_a_controller_that_does_not_come_back_keeps_no_process_alive(app, monkeypatch, caplog):
    busy = Busy()
    monkeypatch.setattr(plane, "STOP_WITHIN", 0.1)
    monkeypatch.setattr(table, "controllers", lambda *_about, **_more: [busy])
    with running(Controllers(app)):
        assert busy.begun.wait(PATIENCE)
    assert "a controller is still busy" in caplog.text
    busy.over.set()
    for one in threading.enumerate():
        if one.name in ("essaim-busy", "essaim-stop"):
            one.join(PATIENCE)
