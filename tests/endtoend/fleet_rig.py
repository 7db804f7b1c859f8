"""A fleet on this computer: sandbox machines, a server that may die, people with keys."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from endtoend.fleet_server import API_PORT
from essaim.agent import source
from essaim.bootstrap import App
from essaim.cli.plane import listening
from essaim.config.compose import compose
from essaim.model.runs import Run
from essaim.model.stacks import Machine
from essaim.remote.ssh import Result
from essaim.usecases import stacks
from essaim.usecases.machines import targets
from testcache import CACHE

PATIENCE = 120.0
PROGRAM = Path(__file__).with_name("fleet_server.py")
ROOT = Path(__file__).parents[2]
LAB = ROOT / "src" / "essaim" / "library" / "labs" / "fleet"

_T = TypeVar("_T")


def wait_for(look: Callable[[], _T], what: str, within: float = PATIENCE) -> _T:
    """Give what is looked for as soon as it is there, however slow the computer is."""
    deadline = time.monotonic() + within
    while not (found := look()):
        assert time.monotonic() < deadline, f"still not so after {within:g} s: {what}"
        time.sleep(0.05)
    return found


@dataclass(frozen=True)
class Tenant:
    """Somebody who rents, with a key of their own."""

    name: str
    token: str
    key: Path

    @property
    def public_key(self) -> str:
        return self.key.with_suffix(".pub").read_text().strip()


class Fleet:
    """One fleet.  Its server may die at any moment; its machines stay."""

    def __init__(self, place: Path, interval: float) -> None:
        self.place = place
        self.environ = {
            **os.environ,
            "ESSAIM_HOME": str(place / "home"),
            "ESSAIM_CACHE": str(CACHE),
            "ESSAIM_INTERVAL": str(interval),
            "ESSAIM_SIGNUP": "open",  # whoever a test needs signs up
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]),
        }
        self.app = App(self.environ)
        self.api, self.gateway = listening("127.0.0.1", 0), listening("127.0.0.1", 0)
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.api.getsockname()[1]}/api/", timeout=60
        )
        self.known = place / "known_hosts"
        self.program: subprocess.Popen[bytes] | None = None
        self.server = 0  #: its pid; 0 while none runs
        self.admin = ""
        self.machines: dict[str, Machine] = {}

    # -- machines -------------------------------------------------------------------------------

    def raise_machines(self, count: int) -> None:
        composed = compose(str(LAB), [f"nodes={count}"])
        self.stack = composed.stack
        self.machines = {machine.name.machine: machine for machine in self.stack.machines}
        run = stacks.follow(self.app, stacks.apply(self.app, stacks.make_plan(self.app, composed)))
        assert run.state == "done", run.error
        self.driver = self.app.driver(self.stack.site)
        with self.driver.listen(self.stack.name, 0) as listener:  # type: ignore[attr-defined]
            self.address: str = listener.getsockname()[0]
        for name in self.machines:
            self.root(
                name,
                "cat >/root/agent.py && python3 /root/agent.py install",
                stdin=source().encode(),
            )

    def root(self, machine: str, script: str, *, stdin: bytes = b"", ok: bool = True) -> Result:
        """Do something as root on a machine."""
        (target,) = targets(self.app, self.stack, [self.machines[machine]])
        done = self.app.remote.run(target, script, stdin=stdin, within=PATIENCE)
        assert not ok or done.exit_code == 0, f"{machine}: {script}\n{done.output}"
        return done

    def from_outside(self, machine: str, *command: str) -> None:
        """Do something to a machine's files that its own root may not do."""
        space = f"--mount=/proc/{self.pid(machine)}/ns/mnt"
        subprocess.run(["nsenter", space, *command], check=True)

    def join(self, machine: str, *options: str, server: str = "", ok: bool = True) -> None:
        """Let a machine join, again if need be; its agent runs from then on."""
        self.stop_agent(machine)
        token = self.post("enrolments", self.admin, uses=1)["token"]
        where = f"--server {server or f'http://{self.address}:{API_PORT}'} --insecure --again"
        self.root(machine, f"{_AGENT} join {where} --no-run --token - {shlex.join(options)}",
                  stdin=f"{token}\n".encode(), ok=ok)  # fmt: skip
        self.start_agent(machine)

    def start_agent(self, machine: str) -> None:
        """Start the agent; it runs, or has ended, when this returns: a signal finds it."""
        begin = f"setsid {_AGENT} run >/var/lib/essaim/log 2>&1 </dev/null & job=$!"
        self.root(machine, f"{begin}; while kill -0 $job && ! {_RUNS}; do sleep 0.05; done")

    def signal_agent(self, machine: str, name: str) -> None:
        """Send a signal to the agent and the tunnel it keeps."""
        self.root(machine, f"pkill -{name} -u essaim -f '^python3 -I .*agent[.]py run|^ssh -N'",
                  ok=False)  # fmt: skip

    def stop_agent(self, machine: str) -> None:
        """End the agent, and wait until it is gone."""
        self.signal_agent(machine, "CONT")
        self.signal_agent(machine, "TERM")
        wait_for(
            lambda: self.root(machine, f"! {_RUNS}", ok=False).exit_code == 0,
            f"the agent of {machine} ends",
        )

    def cut_power(self, machine: str) -> None:
        self.driver.stop(self.machines[machine].name)
        self.app.remote.drop(self.machines[machine].name)

    def power_on(self, machine: str) -> None:
        """Start a machine that was off; its agent has to be started, too."""
        self.driver.start(self.machines[machine].name)
        (target,) = targets(self.app, self.stack, [self.machines[machine]])
        self.app.remote.drop(target.name)
        self.app.remote.reach(target, within=PATIENCE)

    def accounts(self, machine: str) -> set[str]:
        """The accounts of leases that are on a machine."""
        said = self.root(machine, "getent passwd | cut -d: -f1 | grep ^l- || true")
        return set(said.stdout.split())

    def pid(self, process: str) -> int:
        """The pid, as the host counts, of the keeper ("") or of a machine's first process."""
        return _keeper(self.app.home / "sandbox" / self.stack.name, process)

    # -- the server -----------------------------------------------------------------------------

    def open_door(self) -> None:
        """Start the program that starts servers, where the machines can be reached."""
        fds = (self.api.fileno(), self.gateway.fileno())
        words = ["nsenter", f"--net=/proc/{self.pid('')}/ns/net", sys.executable, "-P"]
        with (self.place / "server.log").open("ab") as log:
            self.program = subprocess.Popen(
                [*words, str(PROGRAM), *map(str, fds), self.address],
                env=self.environ,
                pass_fds=fds,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
            )

    def serve(self) -> None:
        """Start a server, and wait until it serves."""
        told = self._ask(None)
        assert isinstance(told, dict), f"the server did not start: exit {told}\n{self.log()}"
        self.server = told["pid"]
        key = " ".join(told["gateway_key"].split()[:2])
        self.known.write_text(f"[127.0.0.1]:{self.gateway.getsockname()[1]} {key}\n")
        if told["admin"]:
            self.admin = self.login("admin", told["admin"])

    def doom(self, workflow: str, step: str, moment: str) -> None:
        """Let the server kill itself just before or after a step."""
        self._ask([workflow, step, moment])

    def await_death(self) -> None:
        code = self._hear()
        self.server = 0
        assert code == -signal.SIGKILL, f"exit {code}\n{self.log()}"

    def kill(self) -> None:
        if self.server:
            os.kill(self.server, signal.SIGKILL)
            self.await_death()

    def log(self) -> str:
        return (self.place / "server.log").read_text(errors="replace")

    def _ask(self, line: object) -> Any:
        assert self.program is not None
        assert self.program.stdin is not None
        self.program.stdin.write(json.dumps(line).encode() + b"\n")
        return self._hear()

    def _hear(self) -> Any:
        assert self.program is not None
        assert self.program.stdout is not None
        heard, _, _ = select.select([self.program.stdout], [], [], PATIENCE)
        assert heard, f"the server says nothing for {PATIENCE:g} s\n{self.log()}"
        return json.loads(self.program.stdout.readline() or b'"no program"')

    def _close_door(self) -> None:
        self.kill()
        if self.program is not None:
            for pipe in (self.program.stdin, self.program.stdout):
                if pipe is not None:
                    pipe.close()
            self.program.wait(PATIENCE)

    # -- people ---------------------------------------------------------------------------------

    def call(self, method: str, path: str, token: str = "", **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if "idempotency" in body:
            headers["Idempotency-Key"] = body.pop("idempotency")
        return self.http.request(method, path, json=body or None, headers=headers)

    def post(self, path: str, token: str = "", **body: Any) -> dict[str, Any]:
        answer = self.call("POST", path, token, **body)
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
        return dict(answer.json())

    def get(self, path: str, token: str = "") -> Any:
        answer = self.call("GET", path, token or self.admin)
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def login(self, name: str, password: str) -> str:
        return str(self.post("login", name=name, password=password)["access"])

    def new_key(self) -> Path:
        key = self.place / f"key-{secrets.token_hex(4)}"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        return key

    def tenant(self, name: str) -> Tenant:
        """Somebody new, who may rent as much as there is."""
        password = secrets.token_urlsafe(12)
        self.post("signup", name=name, password=password)
        changed = self.call("PATCH", f"users/{name}", self.admin, machines=100, hours=10_000)
        assert changed.is_success, changed.text
        return Tenant(name, self.login(name, password), self.new_key())

    def rent(self, tenant: Tenant, **wish: Any) -> str:
        """Rent, and wait until the lease is active; gives its name."""
        wish = {"seconds": 3600, "patience": 0, "public_key": tenant.public_key, **wish}
        name: str = self.post("rent", tenant.token, **wish)["id"]
        self.await_lease(name, "active")
        return name

    def lease(self, name: str) -> dict[str, Any]:
        return dict(self.get(f"leases/{name}"))

    def await_lease(self, name: str, state: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.lease(name)
            return found if found["state"] == state else None

        return wait_for(look, f"lease {name} is {state}")

    def release(self, tenant: Tenant, name: str) -> None:
        self.post("release", tenant.token, lease=name)
        self.await_lease(name, "ended")

    def tidy(self) -> None:
        """End every lease there is, whatever a test did."""
        if not self.server:
            self.serve()
        for lease in self.get("leases?all=true"):
            if lease["state"] not in ("ended", "failed"):
                self.post("release", self.admin, lease=lease["id"])
                self.await_lease(lease["id"], "ended")

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Every node by the name of its machine, as an operator sees it."""
        return {node["name"]: node for node in self.get("nodes")}

    def await_node(self, machine: str, state: str = "ready") -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.nodes().get(machine)
            return found if found and found["state"] == state else None

        return wait_for(look, f"{machine} is {state}")

    def machine_of(self, name: str) -> str:
        """Which machine holds a lease now."""
        (key,) = self.lease(name)["nodes"]
        return next(machine for machine, node in self.nodes().items() if node["id"] == key)

    def events(self, kind: str, node: str) -> list[dict[str, Any]]:
        """All that operators were told of that kind about a node, as they read it."""
        headers = {"Authorization": f"Bearer {self.admin}", "Last-Event-ID": "0"}
        answer = self.http.get("events?all=true&follow=false", headers=headers)
        assert answer.is_success, answer.text
        lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        found = [json.loads(line.removeprefix("data: ")) for line in lines]
        return [each for each in found if (each["kind"], each["node"]) == (kind, node)]

    def runs(self, *, workflow: str = "", subject: str = "") -> list[Run]:
        return self.app.journal.list(workflow=workflow, subject=subject)

    def ssh(
        self, lease: str, key: Path, *command: str, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Log in through the gateway as anybody does."""
        port = str(self.gateway.getsockname()[1])
        words = ["ssh", *self.options(key), "-p", port, f"{lease}@127.0.0.1", *command]
        return _run(words, stdin)

    def scp(self, key: Path, *places: str) -> subprocess.CompletedProcess[str]:
        """Copy through the gateway; places there are written `LEASE:path`."""
        port = str(self.gateway.getsockname()[1])
        there = [place.replace(":", "@127.0.0.1:", 1) for place in places]
        return _run(["scp", "-q", *self.options(key), "-P", port, *there], "")

    def options(self, key: Path) -> list[str]:
        told = {
            "BatchMode": "yes",
            "IdentitiesOnly": "yes",
            "LogLevel": "ERROR",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(self.known),
        }
        pairs = [word for pair in told.items() for word in ("-o", "=".join(pair))]
        return ["-F", os.devnull, "-i", str(key), *pairs]

    def close(self) -> None:
        self._close_door()
        self.http.close()
        for listener in (self.api, self.gateway):
            listener.close()
        if self.app.stacks.get_stack("fleet") is not None:
            stacks.give_way(self.app, "fleet")
            plan = stacks.make_down_plan(self.app, "fleet")
            stacks.follow(self.app, stacks.apply(self.app, plan))
        self.app.close()


_AGENT = "runuser -u essaim -- python3 -I /usr/local/lib/essaim/agent.py"
_RUNS = "pgrep -u essaim -f '^python3 -I .*agent[.]py run'"


def _run(words: list[str], stdin: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, input=stdin, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def _keeper(folder: Path, machine: str) -> int:
    """Find the process that holds a stack, or the first one of a machine in it."""
    console = str(folder / "machines" / machine / "console.log")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if machine and os.readlink(f"/proc/{pid}/fd/2") == console:
                status = Path(f"/proc/{pid}/status").read_text()
                if next(li for li in status.splitlines() if "NSpid" in li).split()[-1] == "1":
                    return int(pid)
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if not machine and str(folder).encode() in words and b"unshare" not in words[0]:
                return int(pid)
    raise LookupError(machine or folder.name)


@contextlib.contextmanager
def fleet(
    machines: int, *options: str, interval: float = 1.0, joined: int | None = None
) -> Iterator[Fleet]:
    """A served fleet of so many machines, all or some of which have joined and are ready."""
    place = Path(tempfile.mkdtemp(prefix="essaim-fleet-"))
    made = Fleet(place, interval)
    try:
        made.raise_machines(machines)
        made.open_door()
        made.serve()
        names = list(made.machines)[:joined]
        for name in names:
            made.join(name, *options)
        for name in names:
            made.await_node(name)
        yield made
    finally:
        made.close()
        shutil.rmtree(place, ignore_errors=True)
