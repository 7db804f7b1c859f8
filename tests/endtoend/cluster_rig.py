"""A control plane of many processes over one MariaDB and one Redis, and machines behind tunnels."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from databases import find, mariadb
from endtoend.fleet_rig import PATIENCE, Fleet, wait_for
from essaim.cli.plane import listening
from essaim.usecases.keys import public_keys

REDIS = 6379


class Cluster(Fleet):
    """The fleet of the rig, served by processes that are started and killed one by one."""

    API: tuple[int, ...] = (8080, 8081)
    GATEWAY: tuple[int, ...] = (2222, 2223)

    def __init__(self, place: Path, interval: float) -> None:
        super().__init__(place, interval)
        self.doors = [listening("127.0.0.1", 0) for _ in self.GATEWAY]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.keys = place / "keys"
        self.environ["ESSAIM_INNER_KEYS"] = str(self.keys / "inner")
        self.apart: dict[str, dict[str, str]] = {}  #: what the environment of one process adds

    def network(self, _name: str) -> int:
        """The pid of a process whose network this one is in: that of the machines."""
        return self.pid("")

    def inside(self, name: str, words: list[str], **more: object) -> subprocess.Popen[bytes]:
        """Start a process where the machines can be reached."""
        if name in self.processes:
            self.end(name, signal.SIGKILL)
        net = f"--net=/proc/{self.network(name)}/ns/net"
        environ = {**self.environ, **self.own_keys(name), **self.apart.get(name, {})}
        with (self.place / f"{name}.log").open("ab") as log:
            made = subprocess.Popen(
                ["nsenter", net, *words], env=environ, stdout=log, stderr=log, **more
            )
        self.processes[name] = made
        return made

    def own_keys(self, name: str) -> dict[str, str]:
        """Each kind of process has a folder of keys of its own; controllers have the fleet's."""
        kind, _, _ = name.partition("-")
        own = {"ESSAIM_KEYS": str(self.keys / kind)} if kind in ("api", "gateway") else {}
        # What gateways and controllers know each other by, an API does not see.
        return {**own, "ESSAIM_INNER_KEYS": own["ESSAIM_KEYS"]} if kind == "api" else own

    def essaim(self, name: str, *words: str) -> None:
        program = "from essaim.cli import main; main()"
        self.inside(name, [sys.executable, "-P", "-c", program, *words])

    def ready(self, name: str) -> None:
        path = self.place / f"{name}.ready"
        wait_for(lambda: path.exists() or self.dead(name), f"{name} is ready")
        assert not self.dead(name), self.said(name)

    def dead(self, name: str) -> bool:
        return self.processes[name].poll() is not None

    def said(self, name: str) -> str:
        return (self.place / f"{name}.log").read_text(errors="replace")

    def start_gateway(self, number: int) -> None:
        name = f"gateway-{number}"
        port = self.GATEWAY[number]
        self.essaim(name, "gateway", "--host", self.address, "--port", str(port), "--linger", "60",
                    "--inner", self.address, "--public", f"{self.address}:{port}",
                    "--ready-file", str(self.place / f"{name}.ready"))  # fmt: skip

    def start_controller(self, number: int) -> None:
        name = f"controller-{number}"
        self.essaim(name, "controller", "--homes-every", "1",
                    "--ready-file", str(self.place / f"{name}.ready"))  # fmt: skip

    def start_api(self, number: int) -> None:
        self.essaim(f"api-{number}", "api", "--host", self.address, "--port", str(self.API[number]),
                    "--public-gateway", f"{self.address}:{self.GATEWAY[0]}",
                    "--drain", "10")  # fmt: skip

    def open_all(self) -> None:
        """Start everything: two of each, one worker, a broker, and the way in for the tests."""
        redis = find("redis-server", "redis-server")
        self.environ["ESSAIM_BROKER"] = f"redis://{self.address}:{REDIS}/0"
        self.inside("redis", [redis, "--bind", self.address, "--port", str(REDIS), "--save", "",
                              "--protected-mode", "no", "--dir", str(self.place)])  # fmt: skip
        ways = [(self.api, self.API), (self.gateway, self.GATEWAY)]
        ways += [(door, (port,)) for door, port in zip(self.doors, self.GATEWAY, strict=True)]
        told = [f"{near.fileno()}:{','.join(map(str, ports))}" for near, ports in ways]
        fds = [near.fileno() for near, _ in ways]
        program = str(Path(__file__).with_name("relay.py"))
        self.inside("relay", [sys.executable, program, self.address, *told], pass_fds=fds)
        self.start_api(0)
        found = wait_for(
            lambda: re.search(r"delete it then:\n +(\S+)", self.said("api-0")), "an admin"
        )
        self.start_api(1)
        for number in range(2):
            self.start_gateway(number)
            self.start_controller(number)
        self.essaim("worker", "worker")
        for number in range(2):
            self.ready(f"gateway-{number}")
            self.ready(f"controller-{number}")
        wait_for(lambda: "ready" in self.said("api-0") and "ready" in self.said("api-1"), "the API")
        self.admin = self.login("admin", Path(found[1]).read_text().strip())
        ports = [near.getsockname()[1] for near in (self.gateway, *self.doors)]
        key = " ".join(public_keys(self.app, "gateway")[0].split()[:2])
        self.known.write_text("".join(f"[127.0.0.1]:{port} {key}\n" for port in ports))

    def ssh_at(self, number: int, lease: str, key: Path, *command: str) -> subprocess.Popen[str]:
        """Log in at one of the gateways."""
        port = str(self.doors[number].getsockname()[1])
        words = ["ssh", *self.options(key), "-p", port, f"{lease}@127.0.0.1", *command]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def runs_at(self, number: int, lease: str, key: Path, *command: str) -> str:
        with self.ssh_at(number, lease, key, *command) as client:
            out, err = client.communicate(timeout=PATIENCE)
        assert client.returncode == 0, f"{command}: {err}"
        return out.strip()

    def tunnel_at(self, machine: str) -> str:
        """Which gateway process holds the tunnel of a machine now; nothing when none does."""
        door = self.app.ways.tunnels.find(self.nodes()[machine]["id"])
        return "" if door is None else f"gateway-{self.GATEWAY.index(door.public_port)}"

    def end(self, name: str, number: int = signal.SIGTERM) -> int:
        process = self.processes[name]
        if process.poll() is None:
            process.send_signal(number)
        return process.wait(PATIENCE)

    def check(self) -> subprocess.CompletedProcess[str]:
        return self.types("check")

    def types(self, *typed: str, of: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end where the processes are, with the keys of one of them."""
        net = f"--net=/proc/{self.pid('')}/ns/net"
        program = "from essaim.cli import main; main()"
        words = ["nsenter", net, sys.executable, "-P", "-c", program, *typed]
        environ = {**self.environ, **self.own_keys(of)}
        return subprocess.run(words, env=environ, capture_output=True, text=True, check=False)

    def close(self) -> None:
        for name in reversed(list(self.processes)):
            self.end(name, signal.SIGKILL)
        for door in self.doors:
            door.close()
        super().close()


@contextlib.contextmanager
def cluster(machines: int) -> Iterator[Cluster]:
    """Machines behind tunnels, served by two of each process and one worker."""
    with mariadb() as server, contextlib.ExitStack() as stack:
        url = sa.make_url(server.new())
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            place = connection.execute(sa.text("SELECT @@socket")).scalar_one()
        engine.dispose()
        # A socket that is a file is reached from every network.
        told = url.set(host=None, port=None).update_query_dict({"unix_socket": place})
        before = os.environ.get("ESSAIM_DATABASE")
        os.environ["ESSAIM_DATABASE"] = told.render_as_string(hide_password=False)
        folder = Path(tempfile.mkdtemp(prefix="essaim-cluster-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            # A machine has three of these to find another gateway, on a busy computer too.
            made = Cluster(folder, 5.0)
        finally:
            os.environ.pop("ESSAIM_DATABASE")
            if before:
                os.environ["ESSAIM_DATABASE"] = before
        stack.callback(made.close)
        made.raise_machines(machines)
        made.open_all()
        for name in made.machines:
            made.join(name, "--tunnel")
        for name in made.machines:
            made.await_node(name)
        yield made
