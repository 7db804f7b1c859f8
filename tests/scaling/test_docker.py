"""Containers of a real Docker engine, started by Compose and scaled by us (R-D8)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

import httpx
import pytest

from api.rig import wait_for
from databases import find
from essaim.model.errors import TransientError
from essaim.scaling.docker import Containers
from essaim_lab.deployment.engine import NEEDED, Docker

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a Docker engine needs root")

PROJECT = "scaled"
#: Works a little all the time, and ends when told.
LOOP = (
    "trap 'exit 0' TERM;"
    "while :; do i=0; while [ $i -lt 9999 ]; do i=$((i+1)); done; sleep 0.2; done"
)
COMPOSE = """\
version: "3.7"
services:
  api:
    image: essaim-test:1
    command: ["/bin/sh", "-c", {loop}]
    environment: {{COLOUR: green}}
    restart: unless-stopped
    networks: {{inner: {{aliases: [doors]}}, outer: {{}}}}
networks: {{inner: {{}}, outer: {{}}}}
"""


class Engine:
    """An engine with a project of one service."""

    def __init__(self, docker: Docker) -> None:
        self.folder, self.socket = docker.place, str(docker.socket)
        self.http = httpx.Client(
            transport=httpx.HTTPTransport(uds=self.socket), base_url="http://docker", timeout=120
        )

    def load_image(self) -> None:
        """A system of one program."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            archive.add(find("busybox", "busybox-static"), "bin/busybox")
            for name in ("sh", "sleep"):
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
        asked = {"fromSrc": "-", "repo": "essaim-test", "tag": "1"}
        answer = self.http.post("/images/create", params=asked, content=out.getvalue())
        assert answer.status_code == 200, answer.text

    def compose(self, *words: str) -> str:
        done = subprocess.run(
            [find("docker-compose", "docker-compose"), "-p", PROJECT, *words],
            cwd=self.folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "DOCKER_HOST": f"unix://{self.socket}",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def deaths(self, key: str, since: int) -> list[str]:
        """With which codes a container has ended since."""
        wanted = {"event": ["die"], "container": [key]}
        asked = {"since": since, "until": int(time.time()) + 1, "filters": json.dumps(wanted)}
        lines = self.http.get("/events", params=asked).text.splitlines()
        return [json.loads(line)["Actor"]["Attributes"]["exitCode"] for line in lines]

    def about(self, key: str) -> dict:
        return self.http.get(f"/containers/{key}/json").json()


@pytest.fixture(scope="module")
def engine():
    for program, package in NEEDED.items():
        find(program, package)
    with tempfile.TemporaryDirectory(prefix="essaim-docker-") as folder:
        docker = Docker(Path(folder) / "engine")
        try:
            docker.start()
            made = Engine(docker)
            made.load_image()
            loop = '"' + LOOP.replace("$", "$$") + '"'
            (made.folder / "docker-compose.yml").write_text(COMPOSE.format(loop=loop))
            made.compose("up", "-d")
            yield made
            made.http.close()
        finally:
            docker.stop()


@pytest.fixture
def containers(engine):
    made = Containers(PROJECT, "api", socket=engine.socket)
    yield made
    made.close()


def test_replicas_come_and_go_and_are_alike(engine, containers):
    (first,) = containers.list()
    assert abs(first.started_at - time.time()) < 300
    containers.add(2)
    found = containers.list()
    assert found[0].id == first.id
    assert len(found) == 3
    model, made = engine.about(first.id), engine.about(found[1].id)
    assert made["Config"]["Env"] == model["Config"]["Env"]
    assert made["HostConfig"]["RestartPolicy"] == model["HostConfig"]["RestartPolicy"]
    assert set(made["NetworkSettings"]["Networks"]) == {"scaled_inner", "scaled_outer"}
    aliases = made["NetworkSettings"]["Networks"]["scaled_inner"]["Aliases"]
    assert {"doors", "api"} <= set(aliases)
    assert first.id[:12] not in aliases
    names = {engine.about(each.id)["Name"] for each in found}
    assert names == {"/scaled_api_1", "/scaled_api_2", "/scaled_api_3"}
    # Compose counts them as its own, and leaves them alone.
    assert len(engine.compose("ps", "-q").split()) == 3
    engine.compose("up", "-d", "--scale", "api=3", "--no-recreate")
    assert [each.id for each in containers.list()] == [each.id for each in found]

    began = int(time.time())
    containers.remove([found[2].id, found[2].id])
    assert engine.deaths(found[2].id, began) == ["0"], "it ends when told, instead of being killed"
    assert [each.id for each in containers.list()] == [each.id for each in found[:2]]
    containers.remove([found[1].id])
    assert [each.id for each in containers.list()] == [first.id]


def test_work_is_measured(containers):
    (before,) = containers.list()
    assert before.cpu_seconds is not None
    wait_for(lambda: containers.list()[0].cpu_seconds > before.cpu_seconds)


def test_one_that_was_stopped_is_started_again_before_another_is_made(engine, containers):
    (first,) = containers.list()
    engine.http.post(f"/containers/{first.id}/stop", params={"t": 1})
    assert containers.list() == []
    containers.add(1)
    assert [each.id for each in containers.list()] == [first.id]


# httpcore leaves a unix socket that cannot be connected to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_the_engine_says_is_told(engine, tmp_path):
    with contextlib.closing(Containers(PROJECT, "nothing", socket=engine.socket)) as none:
        assert none.list() == []
        with pytest.raises(TransientError, match="no container of service nothing") as caught:
            none.add(1)
        assert "docker-compose -p scaled up -d nothing" in caught.value.hint
    away = Containers(PROJECT, "api", socket=str(tmp_path / "no"))
    with contextlib.closing(away), pytest.raises(TransientError, match="no answer"):
        away.list()


def test_one_that_cannot_start_leaves_nothing_behind(engine, containers, monkeypatch):
    from essaim.scaling import docker

    kept = docker._config

    def broken(model, number):
        return {**kept(model, number), "Cmd": ["/no/such/program"], "Entrypoint": None}

    monkeypatch.setattr(docker, "_config", broken)
    with pytest.raises(TransientError, match="no/such/program"):
        containers.add(1)
    assert len(containers.list()) == 1
    assert len(containers._all()) == 1
