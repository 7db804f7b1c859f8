"""No process holds a key it does not need, and each key can be changed without joining again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agent.worker import Worker, worker
from deploy.api import Api
from endtoend.fleet_rig import Fleet
from essaim.agent import source
from essaim.bootstrap import App
from essaim.model.errors import RejectedError
from essaim.model.fleet import Announcement
from essaim.remote.keyring import Keyring, public_half
from essaim.remote.ssh import Target
from essaim.usecases import ssh_keys
from essaim.usecases.credentials import digest, new_token
from essaim.usecases.keys import CONTROL, GATEWAY, KEYS, public_keys, same_keys

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx1rKqXl7ZJcG9Vt0mC3o2y5QnC8m8m0mJ3H1g0Yy2k"


def private_keys(folder: Path) -> set[str]:
    """Name the files below a folder that hold a private SSH key."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.name for path in files if b"PRIVATE KEY" in path.read_bytes()}


@pytest.fixture
def place(tmp_path) -> Path:
    """Where a control plane of several processes is, each kind with keys of its own."""
    return tmp_path


def process(place: Path, keys: str) -> App:
    folders = {"ESSAIM_KEYS": str(place / keys), "ESSAIM_INNER_KEYS": str(place / "inner")}
    return App({"ESSAIM_HOME": str(place / "home"), **folders})


def joins(app: App, name: str) -> None:
    """Let a machine join."""
    token = new_token("enrol")
    app.fleet.enrol(digest(token), uses=1, seconds=600)
    said = Announcement(name=name, cores=1, memory=256, address="192.0.2.1", host_key=KEY)
    app.fleet.register(digest(token), said, digest(new_token("node")))


def test_a_thief_in_the_api_finds_no_key_and_it_serves_without(place):
    folder = place / "api"
    folder.mkdir()
    environ = {
        **os.environ,
        "ESSAIM_HOME": str(place / "home"),
        "ESSAIM_KEYS": str(folder),
        "ESSAIM_PUBLIC_GATEWAY": "lab.test:2222",
    }
    api = Api(environ, place / "api.log", 0)
    api.start()
    control, gateway = process(place, "control"), process(place, "gateway")
    token = new_token("enrol")
    try:
        control.fleet.enrol(digest(token), uses=1, seconds=600)
        body = {
            "token": token, "name": "one", "cores": 1, "memory": 256, "host_key": KEY,
            "tunnel": True, "tunnel_key": KEY,
        }  # fmt: skip
        url = f"http://{api.address}/api/workers/register"
        # Nobody has said yet what the machine is to let in.
        assert httpx.post(url, json=body, trust_env=False, timeout=60).status_code == 503
        same_keys(control, CONTROL)
        same_keys(gateway, GATEWAY)
        joined = httpx.post(url, json=body, trust_env=False, timeout=60).json()
    finally:
        api.kill()
        control.close()
        gateway.close()
    assert joined["server_public_key"] == public_half((place / "control/control").read_bytes())
    assert joined["gateway"]["host_key"] == public_half((place / "gateway/gateway").read_bytes())
    assert private_keys(folder) == set()
    assert private_keys(place / "gateway") == {"gateway", "lease"}
    assert private_keys(place / "control") == {"control", "id_ed25519"}


def test_of_a_new_control_plane_no_key_serves_two_ends(place):
    app = process(place, "all")
    try:
        same_keys(app)
        said = {name: public_keys(app, name) for name in KEYS}
    finally:
        app.close()
    assert all(len(each) == 1 for each in said.values())
    assert len({each[0] for each in said.values()}) == len(KEYS)


def test_machines_that_joined_when_there_was_one_key_go_on_knowing_it(place):
    ring = Keyring(place / "all")
    old, shown = ring.user_public_key(), ring.gateway_public_key()
    app = process(place, "all")
    try:
        joins(app, "one")
        same_keys(app)
        assert [public_keys(app, name) for name in ("control", "lease", "user")] == [[old]] * 3
        assert public_keys(app, "gateway") == [shown]
        assert ring.path("lease") == ring.user_key()
    finally:
        app.close()


def test_gateways_and_controllers_rotate_in_turn_where_their_keys_are_apart(place):
    gateway, control = process(place, "gateway"), process(place, "control")
    try:
        same_keys(gateway, GATEWAY)
        same_keys(control, CONTROL)
        before = public_keys(gateway, "lease")

        def turns(app: App, name: str = "lease") -> tuple[str, int]:
            return ssh_keys.rotate(app, name).waits_for, len(gateway.keyring.paths("lease"))

        assert turns(gateway, "control") == ("control", 1)
        assert turns(control) == ("lease", 1)  # nothing begins without the key
        assert turns(gateway) == ("control", 2)
        assert turns(gateway) == ("control", 2)  # no sooner than machines know both
        assert public_keys(control, "lease")[:1] == before
        assert turns(control) == ("lease", 2)
        assert turns(gateway) == ("control", 2)
        assert set(before).isdisjoint(public_keys(control, "lease"))
        assert turns(control) == ("lease", 2)
        assert turns(gateway) == ("", 1)
        assert gateway.keyring.public_keys("lease") == public_keys(control, "lease") != before
        assert turns(control, "control") == ("", 1)
        same_keys(gateway, GATEWAY)
        same_keys(control, CONTROL)
    finally:
        gateway.close()
        control.close()


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> Iterator[Worker]:
    if os.geteuid():
        pytest.skip("the accounts of these machines need root's uids")
    with worker(tmp_path_factory.mktemp("rotated")) as one:
        yield one


class Lent:
    """What a rotation asks of how nodes are reached: each is this machine."""

    def __init__(self, box: Worker) -> None:
        self._box = box

    def target(self, node) -> Target:
        service = self._box.service
        return Target(
            name=service.name, address=service.address, host_key=service.host_key,
            user="essaim", dial=None if node.name == "silent" else service.dial,
            port=1, key="control",
        )  # fmt: skip


@pytest.mark.root
@pytest.mark.timeout(300)
def test_a_key_that_was_stolen_is_changed_and_no_machine_joins_again(machine, place, monkeypatch):
    monkeypatch.setattr(ssh_keys, "REACH_WITHIN", 5.0)
    app = process(place, "all")
    try:
        same_keys(app, CONTROL)
        stolen = app.keyring.path("control")
        thief = place / "stolen"
        thief.write_bytes(stolen.read_bytes())
        thief.chmod(0o600)
        machine.put("/root/agent.py", source().encode())
        machine.sh('python3 -I /root/agent.py install "$@"', "--key", *public_keys(app, "control"))
        assert machine.ssh("essaim", "id -un", key=thief).stdout == "essaim\n"
        joins(app, "one")
        app.lending = Lent(machine)
        ssh_keys.begin(app, "control")
        assert len(public_keys(app, "control")) == 2
        assert ssh_keys.push(app, "control").reached == 1
        # Both open it now, so that whoever has only one of them goes on working.
        following = app.keyring.paths("control")[1]
        for key in (thief, following):
            assert machine.ssh("essaim", "id -un", key=key).stdout == "essaim\n"
        assert ssh_keys.rotate(app, "control") == ssh_keys.Pushed(reached=1)
        assert machine.ssh("essaim", "id -un", key=app.keyring.path("control")).returncode == 0
        assert "Permission denied" in machine.ssh("essaim", "id -un", key=thief).stderr
        assert public_keys(app, "control") == app.keyring.public_keys("control")
        same_keys(app, CONTROL)
    finally:
        app.close()


@pytest.mark.root
@pytest.mark.timeout(300)
def test_a_machine_that_does_not_answer_holds_the_old_key_and_the_rotation_waits(
    machine, place, monkeypatch
):
    monkeypatch.setattr(ssh_keys, "REACH_WITHIN", 1.0)
    app = process(place, "all")
    try:
        same_keys(app, CONTROL)
        before = app.keyring.public_keys("control")
        joins(app, "silent")
        app.lending = Lent(machine)
        with pytest.raises(RejectedError, match="1 machines do not know the key control"):
            ssh_keys.rotate(app, "control")
        assert public_keys(app, "control")[:1] == before
        assert app.keyring.public_keys("control")[:1] == before
    finally:
        app.close()


@pytest.mark.root
@pytest.mark.timeout(600)
def test_the_key_of_the_gateways_is_changed_under_a_lease(its: Fleet):
    eve = its.tenant("ewa")
    lease = its.rent(eve)
    port = str(its.gateway.getsockname()[1])
    words = ["ssh", *its.options(eve.key), "-p", port, f"{lease}@127.0.0.1", "echo in; cat"]
    pipe = subprocess.PIPE
    inside = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
    assert inside.stdout.readline() == "in\n"
    before = its.app.keyring.path("lease").read_bytes()
    # From here the machines are reached as the server reaches them: through its own network.
    program = (
        "from essaim.bootstrap import App; from essaim.usecases import ssh_keys; "
        "print(ssh_keys.rotate(App(), 'lease').reached)"
    )
    net = f"--net=/proc/{its.pid('')}/ns/net"
    done = subprocess.run(
        ["nsenter", net, sys.executable, "-P", "-c", program],
        env=its.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert its.app.keyring.path("lease").read_bytes() != before
    known = its.root(its.machine_of(lease), f"cat /etc/essaim/keys/{lease}").stdout
    assert known.count("ssh-ed25519") == 1
    assert public_half(its.app.keyring.path("lease").read_bytes()) in known
    # The connection that is open stays so; another is made with the new key.
    assert its.ssh(lease, eve.key, "id -un").stdout == f"{lease}\n"
    assert inside.communicate("still here", timeout=60)[0] == "still here"
