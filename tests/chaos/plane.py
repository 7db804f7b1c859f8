"""The deployment that faults befall: two of each process behind Caddy, three workers, machines.

All of it lives in the machines' own network; the last worker has a network of its own, with one
cable to that of the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx

from brokers import Broker
from chaos.servers import Server
from databases import as_user, find
from endtoend.cluster_rig import Cluster
from endtoend.fleet_rig import ROOT, wait_for
from essaim.drivers.sandbox.service import BRIDGE
from essaim.model.errors import EssaimError
from essaim.usecases.keys import public_keys

CADDY = 8080
CLONE_NEWNET = 0x40000000
CABLE = "cut"
#: The worker in a network of its own, and its address there.
FAR, FAR_ADDRESS = "worker-2", "10.79.0.250"
WORKERS = 3
#: How wrong a clock is; monotonic time stays as it is.
SKEWS = ("+90s", "-90s")


class Plane(Cluster):
    """A deployment whose parts are broken and mended by name."""

    API = (8081, 8082)

    def __init__(self, place: Path, database: Server, interval: float) -> None:
        os.environ["ESSAIM_DATABASE"] = database.near
        super().__init__(place, interval)
        self.database = database
        self.broker: Broker | None = None
        self._lock = threading.Lock()
        self._holder: subprocess.Popen[bytes] | None = None
        self._off: set[str] = set()

    # -- making it --------------------------------------------------------------------------------

    def begin(self, machines: int, broker: str) -> None:
        """Raise the machines, then move into their network and start everything there."""
        self.raise_machines(machines)
        self._move_in()
        self.database.end(signal.SIGTERM)
        self.database.address = self.address
        self.database.start()
        folder = self.place / "broker"
        folder.mkdir()
        user = as_user(broker)
        if user:
            subprocess.run(["chown", f"{broker}:", folder], check=True)
        self.broker = Broker(broker, folder, self.address)
        self.broker.start()
        self.environ["ESSAIM_DATABASE"] = self.database.far
        self.environ["ESSAIM_BROKER"] = self.broker.url
        self._open()
        for number, name in enumerate(self.machines):
            self.join(name, *(["--tunnel"] if number % 2 else []))
        for name in self.machines:
            self.await_node(name)

    def _move_in(self) -> None:
        # Threads and processes that begin from here on are in the network of the machines.
        with open(f"/proc/{self.pid('')}/ns/net") as network:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(network.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        self.http.close()
        self.http = httpx.Client(base_url=f"http://{self.address}:{CADDY}/api/", timeout=60)
        # A network with one cable to the bridge, and somebody who keeps it.
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        pid = self._holder.pid
        mine = os.stat("/proc/self/ns/net").st_ino
        wait_for(lambda: os.stat(f"/proc/{pid}/ns/net").st_ino != mine, "a network")
        _ip("link", "add", CABLE, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        _ip("link", "set", CABLE, "master", BRIDGE, "up")
        far = ["nsenter", f"--net=/proc/{pid}/ns/net"]
        for words in (["link", "set", "lo", "up"], ["link", "set", "eth0", "up"],
                      ["address", "add", f"{FAR_ADDRESS}/24", "dev", "eth0"]):  # fmt: skip
            subprocess.run([*far, "ip", *words], check=True)

    def network(self, name: str) -> int:
        if name == FAR and self._holder is not None:
            return self._holder.pid
        return super().network(name)

    def _open(self) -> None:
        self._start_caddy()
        self.start("api-0")
        found = wait_for(
            lambda: re.search(r"delete it then:\n +(\S+)", self.said("api-0")), "an admin"
        )
        for name in ("api-1", "gateway-0", "gateway-1", "controller-0", "controller-1"):
            self.start(name)
        for number in range(WORKERS):
            self.start(f"worker-{number}")
        for name in ("gateway-0", "gateway-1", "controller-0", "controller-1"):
            self.ready(name)
        wait_for(lambda: "ready" in self.said("api-0") and "ready" in self.said("api-1"), "the API")
        wait_for(self._answers, "Caddy")
        self.admin = self.login("admin", Path(found[1]).read_text().strip())
        key = " ".join(public_keys(self.app, "gateway")[0].split()[:2])
        hosts = [f"[{self.address}]:{port} {key}\n" for port in self.GATEWAY]
        self.known.write_text("".join(hosts))

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://{self.address}:{CADDY}/readyz").is_success
        except httpx.HTTPError:
            return False

    def _start_caddy(self) -> None:
        # As it is deployed, but without TLS.
        text = (ROOT / "deploy" / "Caddyfile").read_text()
        text = re.sub(r"^\ttls .*\n", "", text, flags=re.MULTILINE)
        (self.place / "Caddyfile").write_text(text)
        self.apart["caddy"] = {
            "ESSAIM_SITE": f"http://{self.address}:{CADDY}",
            "ESSAIM_UPSTREAMS": " ".join(f"{self.address}:{port}" for port in self.API),
            "HOME": str(self.place),
            "XDG_DATA_HOME": str(self.place / "caddy"),
            "XDG_CONFIG_HOME": str(self.place / "caddy"),
        }
        words = [find("caddy", "caddy"), "run", "--adapter", "caddyfile", "--config"]
        self.inside("caddy", [*words, str(self.place / "Caddyfile")])

    # -- its parts --------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a process anew, whatever there was by that name."""
        kind, _, number = name.partition("-")
        with self._lock:
            if kind == "worker":
                self.essaim(name, "worker", "--concurrency", "8")
            else:
                (self.place / f"{name}.ready").unlink(missing_ok=True)
                getattr(self, f"start_{kind}")(int(number))

    def signal(self, name: str, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.processes[name].send_signal(number)

    def skew(self, name: str, by: str) -> None:
        """Start a process whose clock is wrong; nothing mends it."""
        self.apart[name] = {
            "LD_PRELOAD": str(next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))),
            "FAKETIME": by,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        self.start(name)

    def straighten(self, name: str) -> None:
        self.apart.pop(name, None)
        self.start(name)

    def cable(self, state: str) -> None:
        """Plug the far worker's cable in (`up`) or out (`down`)."""
        _ip("link", "set", CABLE, state)

    def turn_off(self, machine: str) -> None:
        self._off.add(machine)
        self.cut_power(machine)

    def turn_on(self, machine: str) -> None:
        self.power_on(machine)
        self.start_agent(machine)
        self._off.discard(machine)

    def seen_accounts(self, machine: str) -> set[str] | None:
        """The accounts of leases on a machine; None when it cannot be asked now."""
        if machine in self._off:
            return None
        with contextlib.suppress(EssaimError, AssertionError):
            return self.accounts(machine)
        return None

    def command(self, *words: str, within: float) -> int:
        """Run `essaim` as a person does, in the network; gives its exit code, -1 without one."""
        program = "from essaim.cli import main; main()"
        with (self.place / "commands.log").open("ab") as log:
            log.write(f"$ essaim {' '.join(words)}\n".encode())
            log.flush()
            try:
                return subprocess.run(
                    [sys.executable, "-P", "-c", program, *words], env=self.environ, stdout=log,
                    stderr=log, stdin=subprocess.DEVNULL, timeout=within, check=False,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                return -1

    def close(self) -> None:
        if self.broker is not None:
            self.broker.close()
        super().close()
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()


def prepare(broker: str) -> None:
    """Install what is missing: in the network of the machines there is no way out."""
    for program, package in (
        (f"{broker}-server", f"{broker}-server"),
        ("caddy", "caddy"),
        ("faketime", "faketime"),
        ("ip", "iproute2"),
    ):
        find(program, package)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
