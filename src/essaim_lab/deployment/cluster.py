"""The deployment of deploy/compose.yaml on this computer, between `up` and `down`."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from essaim.bootstrap import cache_home
from essaim.model.errors import SetupError
from essaim_lab.deployment import doors, images
from essaim_lab.deployment.commands import call, undisturbed
from essaim_lab.deployment.engine import Docker
from essaim_lab.deployment.workers import NAME, Workers

PROJECT = "essaim"
#: How we call the front door from outside.
OUTSIDE = "localhost"
#: Ports in the engine's network, and the settings that say which of this computer lead there.
HTTPS, SSH = 443, 2222
OUTER = {HTTPS: "OUTER_HTTPS", SSH: "OUTER_SSH"}
#: API processes that there are at least, and as many as the autoscaler may make.
FEWEST, MOST = 2, 4
READY_WITHIN = 240.0
#: Nobody wants to watch for as long as real life takes.
QUICK = {
    "COMPOSE_PROFILES": "autoscale",
    "HOMES_EVERY": "2",
    "AUTOSCALE_TARGET": "0.2",
    "AUTOSCALE_INTERVAL": "2",
    "AUTOSCALE_RISE": "6",
    "AUTOSCALE_FALL": "20",
    "AUTOSCALE_COOLDOWN": "5",
    "AUTOSCALE_WARM_UP": "5",
    "AUTOSCALE_CONTROLLERS": "2-3",
}
ROOT_CERTIFICATE = "/data/caddy/pki/authorities/local/root.crt"


class Cluster:
    """One deployment, its engine and files below `place`, made from the checkout `repo`."""

    def __init__(self, place: Path, repo: Path, say: Callable[[str], None]) -> None:
        self.place, self.repo, self.say = place, repo, say
        self.docker = Docker(place / "docker")
        self.workers = Workers(self)
        self._file = place / "settings.json"
        self.certificate = place / "root.crt"

    @property
    def settings(self) -> dict[str, str]:
        """What compose.yaml is told; SetupError while nothing is up."""
        try:
            return dict(json.loads(self._file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise SetupError("the deployment is not up", hint="make up-cluster") from None

    @property
    def url(self) -> str:
        """Where the API answers, for this computer."""
        return f"https://{OUTSIDE}:{self.settings[OUTER[HTTPS]]}"

    @property
    def ssh_port(self) -> int:
        """Where the gateway answers, on this computer's loopback."""
        return int(self.settings[OUTER[SSH]])

    def up(self) -> None:
        """Bring everything up and wait until the API answers through Caddy."""
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.say("a Docker engine of its own")
        fresh = self.docker.start()
        if not self.is_made:
            given = images.make(self.docker, self.repo, cache_home(os.environ), self.say)
            engine = {
                "DOCKER_SOCKET": str(self.docker.socket),
                "DOCKER_GROUP": str(self.docker.socket.stat().st_gid),
            }
            self._write({**given, **_settings(self.repo), **engine, **QUICK, **self._open()})
        elif fresh:
            self._open()
        self.say("containers")
        began = time.monotonic()
        self.compose("up", "--detach", "--no-build")
        self._wait_ready()
        count = len(self.docker.run("ps", "--quiet").split())
        self.say(f"   {count} run, and the API answers, after {time.monotonic() - began:.1f} s")

    def down(self) -> None:
        """Take everything away, data too; once begun, it is finished."""
        with undisturbed():
            self.docker.stop()
            for file in (self._file, self.certificate):
                file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.place.rmdir()

    def left(self) -> list[str]:
        """Name what there still is of it on this computer."""
        return [*self.docker.left(), *([f"folder {self.place}"] if self.place.exists() else [])]

    @property
    def is_made(self) -> bool:
        """Whether it was up before, and was not taken down."""
        return self._file.exists()

    def _open(self) -> dict[str, str]:
        """Let ports of this computer lead inside: the same as before, if it was up before."""
        before = self.settings if self.is_made else {}
        with contextlib.ExitStack() as stack:
            found = {
                port: stack.enter_context(doors.opened(int(before.get(name, "0"))))
                for port, name in OUTER.items()
            }
            self.docker.beside(doors.command(found), [each.fileno() for each in found.values()])
            return {OUTER[port]: str(sock.getsockname()[1]) for port, sock in found.items()}

    def compose(self, *words: str, within: float = 300.0) -> str:
        """Run docker-compose on it."""
        file = str(self.repo / "deploy" / "compose.yaml")
        environ = {**self.docker.environ, **self.settings}
        command = ["docker-compose", "--project-name", PROJECT, "--project-directory",
                   str(self.repo), "--file", file, *words]  # fmt: skip
        return call(command, environ, within=within, cwd=self.repo)

    def containers(self, service: str) -> list[str]:
        """Name the running containers of a service, those the autoscaler made too."""
        label = f"label=com.docker.compose.service={service}"
        return sorted(self.docker.run("ps", "--filter", label, "--format", "{{.Names}}").split())

    def inside(self, container: str, *words: str, env: dict[str, str] | None = None) -> str:
        """Run a command in a container; secrets go in `env`, which nobody can read."""
        names = [word for key in env or {} for word in ("--env", key)]
        environ = {**self.docker.environ, **(env or {})}
        return call(["docker", "exec", *names, container, *words], environ, within=120.0)

    def machine(self, name: str) -> str:
        """The container of a machine."""
        return f"{PROJECT}_{name}_1"

    def logs(self, lines: int = 60) -> str:
        """What the processes said last."""
        with contextlib.suppress(subprocess.SubprocessError, SetupError):
            return self.compose("logs", "--no-color", f"--tail={lines}")
        return ""

    def _write(self, settings: dict[str, str]) -> None:
        self._file.touch(mode=0o600)
        self._file.write_text(json.dumps(settings, indent=1), encoding="utf-8")

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_WITHIN
        before = ""
        while (wrong := self._wrong()) is not None:
            if time.monotonic() > deadline:
                raise SetupError(f"not ready after {READY_WITHIN:g} s: {wrong}\n{self.logs()}")
            if wrong != before:
                self.say(f"   not yet: {wrong.strip().splitlines()[-1][:100]}")
            before = wrong
            time.sleep(0.5)

    def _wrong(self) -> str | None:
        """Say what keeps the API from answering; nothing when it does."""
        import httpx  # noqa: PLC0415 - `down` works without

        try:
            self.docker.run("cp", f"{PROJECT}_caddy_1:{ROOT_CERTIFICATE}", str(self.certificate))
            with self.client(timeout=5) as client:
                client.get("/readyz").raise_for_status()
        except (subprocess.SubprocessError, OSError, httpx.HTTPError) as error:
            return str(error)
        return None

    def client(self, **more: Any) -> Any:
        """An HTTP client that trusts Caddy's authority and nobody else."""
        import httpx  # noqa: PLC0415 - `down` works without

        return httpx.Client(base_url=self.url, verify=self._trust(), trust_env=False, **more)

    def connection(self, timeout: float) -> http.client.HTTPSConnection:
        """One that costs little, for whoever asks much."""
        port = int(self.settings[OUTER[HTTPS]])
        return http.client.HTTPSConnection(OUTSIDE, port, timeout=timeout, context=self._trust())

    def _trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))


def _settings(repo: Path) -> dict[str, str]:
    return {
        "DATABASE_PASSWORD": secrets.token_hex(16),
        "BROKER_PASSWORD": secrets.token_hex(16),
        "ESSAIM_SITE": f"https://{NAME}, https://{OUTSIDE}",
        "ESSAIM_SNI": NAME,
        "ESSAIM_TLS": "internal",
        "ESSAIM_PUBLIC_URL": f"https://{NAME}",
        "ESSAIM_PUBLIC_GATEWAY": f"gateway:{SSH}",
        "ESSAIM_LISTEN": "127.0.0.1",
        "ESSAIM_CADDYFILE": str(repo / "deploy" / "Caddyfile"),
        "ESSAIM_INTERVAL": "2",
        "ESSAIM_LOG": "plain",
        "ESSAIM_UPSTREAMS": " ".join(
            f"{PROJECT}_api_{number}:8080" for number in range(1, MOST + 1)
        ),
        "HTTPS_PORT": str(HTTPS),
        "SSH_PORT": str(SSH),
    }
