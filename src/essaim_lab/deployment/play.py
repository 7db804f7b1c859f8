"""The demonstration: a rented machine's life through Caddy, and an API that grows with its load."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import secrets
import subprocess
import tempfile
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from typing_extensions import override

from essaim.model.errors import EssaimError
from essaim_lab.deployment.cluster import FEWEST, Cluster

PATIENCE = 180.0
MACHINES = ("pc-1", "pc-2", "pc-3")
#: Clients that ask as fast as they are answered.
CLIENTS = 12
#: Seconds between the questions of the one who stays.
BETWEEN = 0.5
FAILED = 1
#: Where the first password is, as the log of one of the processes says.
SAID_ONCE = re.compile(r"\s(/\S+/admin-password)\b")
#: Asks Caddy's admin API, with what a small Debian has.
UPSTREAMS = r"""
exec 3<>/dev/tcp/localhost/2019
printf 'GET /reverse_proxy/upstreams HTTP/1.0\r\nHost: localhost:2019\r\n\r\n' >&3
cat <&3
"""


def demo(cluster: Cluster) -> int:
    """Play it on a deployment that is not up yet, and take that down; 0 if every claim holds."""
    with (
        tempfile.TemporaryDirectory(prefix="essaim-demo-") as name,
        contextlib.closing(Play(cluster, Path(name))) as play,
    ):
        try:
            cluster.up()
            play.claim("the deployment is up, built from nothing but Debian and the lock")
            play.all()
        except EssaimError:
            cluster.down()
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the rest is told and cleaned
            cluster.say(cluster.logs())
            cluster.say("".join(traceback.format_exception(error)))
            play.claim(f"no error: {error!r:.200}", holds=False)
        play.act("All of it is taken down.")
        cluster.down()
        left = cluster.left()
        play.claim(f"it left nothing: {', '.join(left) or 'no process, mount, folder'}",
                   holds=not left)  # fmt: skip
    cluster.say("What was shown, and the seconds it took:")
    for each in play.claims:
        cluster.say(f"  {each}")
    return 0 if all(each.holds for each in play.claims) else FAILED


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that was to be shown."""

    text: str
    holds: bool
    seconds: float

    @override
    def __str__(self) -> str:
        return f"{'✓' if self.holds else '✗'} {self.seconds:6.1f} s  {self.text}"


class Play:
    """One performance on a deployment that is up."""

    def __init__(self, cluster: Cluster, place: Path) -> None:
        self.cluster, self.place, self.say = cluster, place, cluster.say
        self.claims: list[Claim] = []
        self._began = time.monotonic()
        self._http: Any = None
        self.admin = self.student = self.lease = self.lost = ""

    def all(self) -> None:
        """Every act, in order."""
        self.join()
        self.check()
        self.rent()
        self.lose()
        self.bring_back()
        self.release()
        self.scale()

    def close(self) -> None:
        """Let go of connections."""
        if self._http is not None:
            self._http.close()

    def act(self, text: str) -> None:
        """Say what happens now; the next claim counts its seconds from here."""
        self.say(text)
        self._began = time.monotonic()

    def claim(self, text: str, *, holds: bool = True) -> None:
        """Note something that was to be shown."""
        claim = Claim(text, holds, time.monotonic() - self._began)
        self.claims.append(claim)
        self.say(f"   {claim}")
        self._began = time.monotonic()

    # -- the acts -------------------------------------------------------------------------------

    def join(self) -> None:
        """Machines announce themselves, trusting Caddy's authority."""
        self.act("Machines join through Caddy, each with a token.")
        self._http = self.cluster.client(timeout=60)
        kept = self.wait(lambda: SAID_ONCE.findall(self.cluster.compose("logs", "api")), 1)
        first = self.cluster.inside(self.cluster.containers("api")[0], "cat", kept[0]).strip()
        self.admin = self.login("admin", first)
        token = self.ask("POST", "enrolments", self.admin, uses=len(MACHINES))["token"]
        self.cluster.workers.launch(len(MACHINES))
        for name in MACHINES:
            self.cluster.workers.join_one(name, token)
        ready = self.wait(lambda: self.nodes("ready"), len(MACHINES))
        self.claim(
            f"{len(ready)} machines joined and were proven clean",
            holds=len(ready) == len(MACHINES),
        )

    def rent(self) -> None:
        """A student signs up, rents a machine and logs in through the gateway."""
        self.act("A student signs up with a code, rents one machine for an hour, and logs in.")
        password = secrets.token_urlsafe(12)
        code = self.ask("POST", "invites", self.admin, uses=1)["code"]
        self.ask("POST", "signup", "", name="student", password=password, invite=code)
        self.student = self.login("student", password)
        key = self.place / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        public = key.with_suffix(".pub").read_text().strip()
        wish = {"public_key": public, "seconds": 3600, "patience": 10}
        self.lease = self.ask("POST", "rent", self.student, **wish)["id"]
        self.wait(self.active, 1)
        self._pin()
        said = self.ssh("echo precious > thesis && hostname && ! sudo -n true")
        self.claim("signed up, rented, and logged in through the gateway", holds=said[1] == 0)
        # The second copy from now on began after the file was written.
        for _ in range(2):
            since = time.time()
            self.wait(lambda since=since: self.copied(since), 1)  # type: ignore[misc]

    def lose(self) -> None:
        """The machine's container is killed; the lease goes on elsewhere."""
        self.act("The machine is killed.")
        self.lost = self.its_lease()["nodes"][0]
        name = self.node(self.lost)["name"]
        self.cluster.docker.run("kill", self.cluster.machine(name))
        moved = self.wait(self.moved, 1)
        answered = self.ssh("cat thesis")
        self.claim(
            "the lease moved; the same address and host key work again",
            holds=bool(moved) and answered[1] == 0,
        )
        self.claim("the student's files are there", holds=answered[0] == "precious\n")

    def bring_back(self) -> None:
        """The machine comes back with the account on its disk, and is cleaned."""
        self.act("The lost machine comes back.")
        machine = self.cluster.machine(self.node(self.lost)["name"])
        self.cluster.docker.run("start", machine)
        before = self._has_account(machine)
        self.wait(lambda: [each for each in self.nodes("ready") if each["id"] == self.lost], 1)
        after = self._has_account(machine)
        self.claim("it was cleaned before it serves again", holds=before and not after)

    def release(self) -> None:
        """The student gives the machine back."""
        self.act("The student gives the machine back.")
        self.ask("POST", "release", self.student, lease=self.lease)
        ended = self.wait(lambda: self.all_of([self.its_lease()], "ended"), 1)
        self.claim("released, and the machine proven clean", holds=bool(ended))
        self.claim("the key opens nothing any more", holds=self.ssh("true")[1] != 0)

    def scale(self) -> None:
        """Load comes and goes, and API processes with it."""
        before = self.wait(lambda: self.as_many("api", FEWEST), FEWEST)
        self.act(f"{CLIENTS} people ask, each as soon as they are answered.")
        with Load(self.cluster, self.student) as load:
            grown = self.wait(lambda: self.cluster.containers("api")[len(before) :], 1)
            text = f"the autoscaler added to {len(before)} API processes: {', '.join(grown)}"
            self.claim(text, holds=len(before) == FEWEST and bool(grown))
            used = self.wait(lambda: [each for each in grown if self.used(each)], 1)
            self.claim(f"Caddy gives requests to {' and '.join(used)}", holds=bool(used))
            load.rest()
            self.act("Most have gone home; one still asks now and then.")
            same = self.wait(lambda: self.as_many("api", FEWEST), FEWEST)
            self.claim(f"the autoscaler left {len(same)} of them", holds=bool(grown) and bool(same))
        text = f"{load.failed} of {load.asked} requests failed while it grew and shrank"
        self.claim(text, holds=load.asked > load.failed == 0)
        told = self.cluster.inside(self.cluster.containers("autoscale")[0], "essaim", "autoscale",
                                   "status")  # fmt: skip
        self.say("essaim autoscale status:\n" + textwrap.indent(told.rstrip(), " " * 9))

    def check(self) -> None:
        """Let the deployment look at itself, from inside and through its front door."""
        self.act("essaim check, in a container.")
        shell = 'printf %s "$CA" >/tmp/ca.crt; SSL_CERT_FILE=/tmp/ca.crt exec essaim check'
        env = {"CA": self.cluster.certificate.read_text(encoding="utf-8")}
        api = self.cluster.containers("api")[0]
        told = self.wait(lambda: self.succeeds(api, "sh", "-c", shell, env=env), 1)
        self.say("\n" + textwrap.indent("".join(told).rstrip(), " " * 9))
        self.claim("essaim check finds nothing wrong", holds=bool(told))

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

    def succeeds(self, container: str, *words: str, env: dict[str, str] | None = None) -> list[str]:
        """What a command says in a container; nothing if it fails."""
        try:
            return [self.cluster.inside(container, *words, env=env)]
        except subprocess.CalledProcessError:
            return []

    def as_many(self, service: str, count: int) -> list[str]:
        """The containers of a service once they are so many."""
        found = self.cluster.containers(service)
        return found if len(found) == count else []

    def used(self, api: str) -> bool:
        """Whether Caddy has just given this process something to do."""
        told = self.succeeds(self.cluster.containers("caddy")[0], "bash", "-c", UPSTREAMS)
        found = json.loads(told[0].partition("\r\n\r\n")[2]) if told else []
        return any(each["address"] == f"{api}:8080" and each["num_requests"] for each in found)

    def _has_account(self, machine: str) -> bool:
        return bool(self.succeeds(machine, "id", self.lease))

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
        self._cluster, self._headers = cluster, {"Authorization": f"Bearer {token}"}
        self._over, self._fewer = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._one, args=[number], daemon=True)
            for number in range(CLIENTS)
        ]
        self.asked = self.failed = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def rest(self) -> None:
        """Leave only one of them, who is in no hurry."""
        self._fewer.set()

    def _one(self, number: int) -> None:
        with contextlib.closing(self._cluster.connection(PATIENCE)) as connection:
            while not self._over.wait(BETWEEN if self._fewer.is_set() else 0):
                if number and self._fewer.is_set():
                    return
                good = self._ask(connection)
                with self._lock:
                    self.asked += 1
                    self.failed += not good

    def _ask(self, connection: http.client.HTTPSConnection) -> bool:
        try:
            connection.request("GET", "/api/leases", headers=self._headers)
            with connection.getresponse() as answer:
                answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()  # it is opened anew for the next
            return False
        return answer.status == http.client.OK
