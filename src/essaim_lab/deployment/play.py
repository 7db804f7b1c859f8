"""The demonstration: a rented machine's life through Caddy, and an API that grows with its load."""

from __future__ import annotations

import re
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from essaim_lab.deployment.cluster import MACHINES, NAME, Cluster

PATIENCE = 180.0
#: Clients that ask as fast as they are answered.
CLIENTS = 12
FAILED = 1
SAID_ONCE = re.compile(r"password, shown only now: (\S+)")
FETCH = """
import ssl, urllib.request
trust = ssl.create_default_context(cafile="/root/ca.crt")
text = urllib.request.urlopen("https://%s/agent.py", context=trust).read()
open("/root/agent.py", "wb").write(text)
"""


def demo(cluster: Cluster) -> int:
    """Play it on a fresh deployment and take that down; 0 only if every claim holds."""
    cluster.down()
    with tempfile.TemporaryDirectory(prefix="essaim-demo-") as name:
        play = Play(cluster, Path(name))
        try:
            cluster.up()
            play.all()
        except Exception:
            cluster.say(cluster.logs())
            raise
        finally:
            play.close()
            cluster.down()
    play.claim("the deployment left nothing", holds=not cluster.place.exists())
    for text, holds in play.claims:
        cluster.say(f"  {'✓' if holds else '✗'} {text}")
    return 0 if all(holds for _text, holds in play.claims) else FAILED


class Play:
    """One performance on a deployment that is up."""

    def __init__(self, cluster: Cluster, place: Path) -> None:
        self.cluster, self.place, self.say = cluster, place, cluster.say
        self.claims: list[tuple[str, bool]] = []
        self._http: Any = None
        self.admin = self.student = self.lease = self.lost = ""

    def all(self) -> None:
        """Every act, in order."""
        self.join()
        self.rent()
        self.lose()
        self.bring_back()
        self.release()
        self.scale()

    def close(self) -> None:
        """Let go of connections."""
        if self._http is not None:
            self._http.close()

    def claim(self, text: str, *, holds: bool) -> None:
        """Note something that was to be shown."""
        self.claims.append((text, holds))
        self.say(f"   {'✓' if holds else '✗'} {text}")

    # -- the acts -------------------------------------------------------------------------------

    def join(self) -> None:
        """Machines announce themselves, trusting Caddy's authority."""
        self.say("Machines join through Caddy, each with a token.")
        self._http = self.cluster.client(timeout=60)
        first = self.wait(lambda: SAID_ONCE.findall(self.cluster.compose("logs", "api")), 1)
        self.admin = self.login("admin", first[0])
        token = self.ask("POST", "enrolments", self.admin, uses=len(MACHINES))["token"]
        for name in MACHINES:
            self.join_one(self.cluster.machine(name), token)
        ready = self.wait(lambda: self.nodes("ready"), len(MACHINES))
        self.claim(
            f"{len(ready)} machines joined and were proven clean",
            holds=len(ready) == len(MACHINES),
        )

    def join_one(self, machine: str, token: str) -> None:
        """What an administrator does on a machine: fetch the agent, and run it with the token."""
        self.cluster.docker.run("cp", str(self.cluster.certificate), f"{machine}:/root/ca.crt")
        self.cluster.inside(machine, "python3", "-c", FETCH % NAME)
        words = ["python3", "/root/agent.py", "join", "--server", f"https://{NAME}"]
        words += ["--ca", "/root/ca.crt", "--no-run"]
        self.cluster.inside(machine, *words, env={"ESSAIM_TOKEN": token})

    def rent(self) -> None:
        """A student signs up, rents a machine and logs in through the gateway."""
        self.say("A student signs up, rents one machine for an hour, and logs in.")
        password = secrets.token_urlsafe(12)
        self.ask("POST", "signup", "", name="student", password=password)
        self.student = self.login("student", password)
        key = self.place / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        public = key.with_suffix(".pub").read_text().strip()
        began = time.monotonic()
        wish = {"public_key": public, "seconds": 3600, "patience": 10}
        self.lease = self.ask("POST", "rent", self.student, **wish)["id"]
        self.wait(self.active, 1)
        self._pin()
        said = self.ssh("echo precious > thesis && hostname && ! sudo -n true")
        took = time.monotonic() - began
        self.claim(f"rented and logged in through the gateway in {took:.1f} s", holds=said[1] == 0)
        # The second copy from now on began after the file was written.
        for _ in range(2):
            since = time.time()
            self.wait(lambda since=since: self.copied(since), 1)  # type: ignore[misc]

    def lose(self) -> None:
        """The machine's container is killed; the lease goes on elsewhere."""
        self.say("The machine is killed.")
        self.lost = self.its_lease()["nodes"][0]
        name = self.node(self.lost)["name"]
        began = time.monotonic()
        self.cluster.docker.run("kill", self.cluster.machine(name))
        moved = self.wait(self.moved, 1)
        answered = self.ssh("cat thesis")
        took = time.monotonic() - began
        self.claim(
            f"the lease moved; the same address and host key work again after {took:.1f} s",
            holds=bool(moved) and answered[1] == 0,
        )
        self.claim("the student's files are there", holds=answered[0] == "precious\n")

    def bring_back(self) -> None:
        """The machine comes back with the account on its disk, and is cleaned."""
        self.say("The lost machine comes back.")
        machine = self.cluster.machine(self.node(self.lost)["name"])
        self.cluster.docker.run("start", machine)
        before = self._has_account(machine)
        self.wait(lambda: [each for each in self.nodes("ready") if each["id"] == self.lost], 1)
        after = self._has_account(machine)
        self.claim("it was cleaned before it serves again", holds=before and not after)

    def release(self) -> None:
        """The student gives the machine back."""
        self.say("The student gives the machine back.")
        self.ask("POST", "release", self.student, lease=self.lease)
        ended = self.wait(lambda: self.all_of([self.its_lease()], "ended"), 1)
        self.claim("released, and the machine proven clean", holds=bool(ended))
        self.claim("the key opens nothing any more", holds=self.ssh("true")[1] != 0)

    def scale(self) -> None:
        """Load comes and goes, and API processes with it."""
        self.say("Everybody asks at once.")
        before = len(self.cluster.containers("api"))
        with Load(self.cluster, self.student) as load:
            grown = self.wait(lambda: self.cluster.containers("api")[before:], 1)
        self.claim(f"the autoscaler added an API process to {before} under load", holds=bool(grown))
        self.say("They have gone home.")
        fewer = self.wait(
            lambda: [True] if len(self.cluster.containers("api")) == before else [], 1
        )
        self.claim("and removed it afterwards", holds=bool(grown) and bool(fewer))
        self.claim(f"0 of {load.asked} requests failed ({load.failed})", holds=load.failed == 0)

    # -- the props ------------------------------------------------------------------------------

    def wait(self, look: Callable[[], list[Any]], count: int) -> list[Any]:
        """Look until there are so many, or patience ends."""
        deadline = time.monotonic() + PATIENCE
        while len(found := look()) < count and time.monotonic() < deadline:
            time.sleep(0.3)
        return found

    def login(self, name: str, password: str) -> str:
        """Give an access token."""
        return str(self.ask("POST", "login", "", name=name, password=password)["access"])

    def ask(self, verb: str, path: str, token: str, **body: Any) -> Any:
        """Ask the API, through Caddy."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = self._http.request(verb, f"/api/{path}", json=body or None, headers=headers)
        if answer.is_error:
            raise RuntimeError(f"{verb} {path}: {answer.status_code} {answer.text}")
        return answer.json()

    def its_lease(self) -> dict[str, Any]:
        """The student's lease as it is now."""
        return dict(self.ask("GET", f"leases/{self.lease}", self.student))

    def nodes(self, state: str) -> list[dict[str, Any]]:
        """Machines in a state."""
        return self.all_of(self.ask("GET", "nodes", self.admin), state)

    def node(self, key: str) -> dict[str, Any]:
        """One machine."""
        every = self.ask("GET", "nodes", self.admin)
        return dict(next(each for each in every if each["id"] == key))

    @staticmethod
    def all_of(found: list[dict[str, Any]], state: str) -> list[dict[str, Any]]:
        """Those in a state."""
        return [each for each in found if each["state"] == state]

    def active(self) -> list[dict[str, Any]]:
        """The lease, once it serves."""
        return self.all_of([self.its_lease()], "active")

    def moved(self) -> list[dict[str, Any]]:
        """The lease, once it serves elsewhere."""
        return [each for each in self.active() if self.lost not in each["nodes"]]

    def copied(self, since: float) -> list[str]:
        """Copies of the home that were finished after a moment."""
        worker = self.cluster.containers("worker")[0]
        words = ["find", "/var/lib/essaim", "-path", f"*{self.lease}*", "-name", "*.tar.gz"]
        return self.cluster.inside(worker, *words, "-newermt", f"@{since:.3f}").split()

    def _has_account(self, machine: str) -> bool:
        try:
            self.cluster.inside(machine, "id", self.lease)
        except subprocess.CalledProcessError:
            return False
        return True

    def _pin(self) -> None:
        """Believe the gateway's host key as the API said it."""
        key = self.its_lease()["access"]["gateway"]["host_key"]
        line = f"[127.0.0.1]:{self.cluster.ssh_port} {key}\n"
        (self.place / "known_hosts").write_text(line, encoding="utf-8")

    def ssh(self, command: str) -> tuple[str, int]:
        """Run a command on the lease, through the gateway; gives output and exit code."""
        words = [
            "ssh", "-F", "/dev/null", "-i", str(self.place / "key"), "-o", "BatchMode=yes",
            "-o", f"UserKnownHostsFile={self.place / 'known_hosts'}", "-o", "LogLevel=ERROR",
            "-o", "StrictHostKeyChecking=yes", "-p", str(self.cluster.ssh_port),
            f"{self.lease}@127.0.0.1", command,
        ]  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        return done.stdout, done.returncode


class Load:
    """People who ask for their leases as fast as they are answered, while this is open."""

    def __init__(self, cluster: Cluster, token: str) -> None:
        self._cluster, self._token = cluster, token
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._one, daemon=True) for _ in range(CLIENTS)]
        self.asked = self.failed = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _one(self) -> None:
        import httpx  # noqa: PLC0415 - as the cluster does

        headers = {"Authorization": f"Bearer {self._token}"}
        with self._cluster.client(timeout=60, headers=headers) as client:
            while not self._over.is_set():
                try:
                    good = client.get("/api/leases").status_code == httpx.codes.OK
                except httpx.HTTPError:
                    good = False
                with self._lock:
                    self.asked += 1
                    self.failed += not good
