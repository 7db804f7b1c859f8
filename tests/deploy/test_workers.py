"""What `make up-cluster WORKERS=N` asks of the control plane: an enrolment, nodes, a removal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from databases import find
from essaim.bootstrap import App
from essaim.config.images import find_image
from essaim.model.errors import SetupError
from essaim.model.fleet import Announcement, NodeState, Wish
from essaim.usecases.keys import CONTROL, same_keys
from essaim.usecases.nodes import register
from essaim_lab.deployment.__main__ import number_of
from essaim_lab.deployment.cluster import Cluster
from essaim_lab.deployment.engine import NEEDED
from essaim_lab.deployment.images import CHANGES, FILES, PREFIX
from essaim_lab.deployment.workers import ENROL, NETWORK, NODES, REMOVE
from patience import in_test_all
from testcache import images

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx1rKqXl7ZJcG9Vt0mC3o2y5QnC8m8m0mJ3H1g0Yy2k"


@pytest.fixture
def app(tmp_path):
    made = App({"ESSAIM_HOME": str(tmp_path)}, kind="check")
    yield made
    made.close()


@pytest.fixture
def script(tmp_path):
    """Run a script as it is run in a container of the API."""

    def run(text: str, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-c", text, *words],
            env={**os.environ, "ESSAIM_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if not code else done.stderr

    return run


def machine(name: str) -> Announcement:
    key = f"{KEY[:-1]}{name[-1]}"
    return Announcement(name=name, cores=1, memory=256, host_key=key, address="192.0.2.1")


def test_machines_are_enrolled_listed_and_removed(app, script):
    same_keys(app, CONTROL)  # as a controller does
    token = script(ENROL, "2").strip()
    for name in ("pc-1", "pc-2"):
        joined = register(app, token, machine(name))
        assert app.fleet.move(joined.node_id, NodeState.READY, of=[NodeState.CLEANING])
    assert json.loads(script(NODES)) == [["pc-1", "ready"], ["pc-2", "ready"]]
    script(REMOVE, "pc-2")
    assert [node.name for node in app.fleet.list()] == ["pc-1"]
    # One that is rented, and no other is free: nothing is lost.
    ada = app.people.add("ada", "")
    lease = app.leases.rent(ada.id, Wish(seconds=600), KEY)
    said = script(REMOVE, "pc-1", code=1)
    assert said == f"no other machine is free for {lease.id}: release them first\n"
    (node,) = app.fleet.list()
    assert (node.name, node.drained, node.lease) == ("pc-1", False, lease.id)


@pytest.mark.parametrize(("words", "count"), [([], 3), (["10"], 10), (["0"], 0)])
def test_how_many_machines_are_wanted(words, count):
    assert number_of(words) == count


@pytest.mark.parametrize("words", [["many"], ["-1"], ["1", "2"]])
def test_what_is_no_number_is_refused(words):
    with pytest.raises(SetupError, match="say a number"):
        number_of(words)


class Alone(Cluster):
    """The engine and machines of a deployment; its control plane is a process of this computer."""

    @property
    def settings(self) -> dict[str, str]:
        return {"MACHINE_IMAGE": f"{PREFIX}/machine"}

    def containers(self, service: str) -> list[str]:
        return [service]

    def inside(self, container: str, *words: str, env: dict[str, str] | None = None) -> str:
        if container != "api":
            return super().inside(container, *words, env=env)
        program = [sys.executable, *words[1:]]
        own = {**os.environ, "ESSAIM_HOME": str(self.repo)}
        return subprocess.run(
            program, env=own, stdout=subprocess.PIPE, text=True, check=True
        ).stdout


@pytest.fixture
def alone(tmp_path, tmp_path_factory):
    if os.geteuid():
        pytest.skip("a Docker engine needs root")
    for program, package in NEEDED.items():
        find(program, package)
    # The path of a Unix socket may not be long.
    cluster = Alone(tmp_path_factory.mktemp("e"), tmp_path, print)
    try:
        cluster.docker.start()
        image = find_image("worker", str(Path(__file__).parents[2]))
        root = images().build(image, lambda _text: None)
        script, name = FILES / "machine.sh", f"{PREFIX}/machine"
        cluster.docker.load(root, name, files=[script], changes=CHANGES["machine"])
        cluster.docker.run("network", "create", "--subnet", "10.78.0.0/24", NETWORK)
        yield cluster
    finally:
        cluster.docker.stop()


@in_test_all
@pytest.mark.timeout(1200)
def test_machines_are_containers_more_and_fewer_of_them(alone, app, script):
    """On a real engine; that they join is shown by `make demo-cluster`."""
    workers = alone.workers
    workers.launch(2)
    assert workers.names() == ["pc-1", "pc-2"]
    assert alone.inside(alone.machine("pc-2"), "hostname").strip() == "pc-2"
    assert "10.78.0.12" in alone.inside(alone.machine("pc-2"), "hostname", "-I")
    token = script(ENROL, "3").strip()
    for name in ("pc-1", "pc-2", "pc-3"):
        joined = register(app, token, machine(name))
        assert app.fleet.move(joined.node_id, NodeState.READY, of=[NodeState.CLEANING])
    workers.resize(3)
    assert workers.names() == ["pc-1", "pc-2", "pc-3"]
    # One that was stopped is started again, at the same address.
    alone.docker.run("kill", alone.machine("pc-1"))
    workers.resize(1)
    assert workers.names() == ["pc-1"]
    assert "10.78.0.11" in alone.inside(alone.machine("pc-1"), "hostname", "-I")
    assert [node.name for node in app.fleet.list()] == ["pc-1"]
