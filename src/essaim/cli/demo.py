"""`demo`: the life of a rented machine, on sandbox machines, told step by step."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essaim.cli.output import duration, say

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.cli.plane import Plane
    from essaim.model.fleet import Lease, Node
    from essaim.model.stacks import Machine, Stack

STACK, MACHINES = "fleet", 3
PATIENCE = 120.0
FAILED = 1

Fast = Annotated[bool, typer.Option("--fast", help="Do not pause between the steps.")]


def demo(fast: Fast = False) -> None:
    """Show a fleet at work: join, rent, log in, lose the machine, go on at the same address.

    Everything happens on this computer, in machines made for it, and is removed afterwards.
    Ends with each claim checked; exit code 0 only if all hold.
    """
    place = Path(tempfile.mkdtemp(prefix="essaim-demo-"))
    try:
        claims = _Demo(place, pause=0.0 if fast else 2.0).play()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    say()
    for claim, holds in claims:
        say(f"  {'✓' if holds else '✗'} {claim}")
    sys.exit(0 if all(holds for _, holds in claims) else FAILED)


class _Demo:
    """One performance."""

    def __init__(self, place: Path, *, pause: float) -> None:
        from essaim.bootstrap import App
        from essaim.cli.try_fleet import sandbox_fleet

        # On the loopback of this computer, for some minutes: anybody may sign up.
        own = {"ESSAIM_INTERVAL": "3", "ESSAIM_HOME": str(place / "home"), "ESSAIM_SIGNUP": "open"}
        self.app: App = App({**os.environ, **own})
        self.app.own_only = False
        self.place = place
        self.pause = pause
        self.claims: list[tuple[str, bool]] = []
        self.stack: Stack
        self.fleet = sandbox_fleet(self.app, STACK)
        self.plane: Plane
        self.machine: Machine
        self.number = 0

    def play(self) -> list[tuple[str, bool]]:
        try:
            self.raise_machines()
            self.serve()
            try:
                self.join()
                self.rent()
                self.lose()
                self.bring_back()
                self.release()
            finally:
                self.plane.stop()
        finally:
            self.fleet.take_down()
            self.app.close()
        return self.claims

    def step(self, text: str) -> None:
        self.number += 1
        say(f"\n{self.number}. {text}")
        time.sleep(self.pause)

    def claim(self, text: str, *, holds: bool) -> None:
        self.claims.append((text, holds))
        say(f"   {'✓' if holds else '✗'} {text}")

    # -- the acts -------------------------------------------------------------------------------

    def raise_machines(self) -> None:
        from essaim.usecases import stacks as use

        self.step("Three machines come up: sandboxes on this computer, behind a closed network.")
        composed = self.fleet.compose(MACHINES)
        self.stack = composed.stack
        stored = use.make_plan(self.app, composed)
        run = use.follow(self.app, use.apply(self.app, stored))
        say(f"   {run.state.value}: {', '.join(str(m.name) for m in self.stack.machines)}")

    def serve(self) -> None:
        from essaim.cli.plane import Plane, listening
        from essaim.cli.try_fleet import listeners
        from essaim.usecases.people import first_admin

        self.step("A server starts: API, controllers and SSH gateway in one process, sign-up open.")
        api = listening("127.0.0.1", 0)
        inside = listeners(self.fleet)
        at = ("127.0.0.1", 0)
        self.plane = Plane(self.app, api=[api], gateway=at, homes_every=2.0, **inside)
        self.plane.start()
        self.base = f"http://127.0.0.1:{api.getsockname()[1]}"
        first_admin(self.app)

    def join(self) -> None:
        self.step("Each machine announces itself with one file and a token; nothing can dial in.")
        self.fleet.join()
        ready = self.wait(self.ready, MACHINES)
        self.claim(
            f"{len(ready)} machines joined by themselves and were proven clean",
            holds=len(ready) == MACHINES,
        )

    def rent(self) -> None:
        self.step("A student signs up, rents one machine for an hour, and logs in.")
        name, password = "student", secrets.token_urlsafe(12)
        self.call("signup", None, name=name, password=password)
        self.student = self.login(name, password)
        key = self.place / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        public = key.with_suffix(".pub").read_text().strip()
        known = f"[127.0.0.1]:{self.plane.gateway.port} {self.plane.gateway_key}\n"
        (self.place / "known_hosts").write_text(known)
        began = time.monotonic()
        self.lease = self.call("rent", self.student, public_key=public, seconds=3600, patience=10)[
            "id"
        ]
        said = self.ssh("hostname && echo precious > thesis && sudo -n true")
        took = duration(time.monotonic() - began)
        self.claim(f"rented and logged in through the gateway in {took}", holds=bool(said[0]))
        self.claim("the account has no root", holds=said[1] != 0)
        # The second copy from now on began after the file was written.
        for _ in range(2):
            since = time.time()
            self.wait(lambda since=since: self.copied(since), 1)  # type: ignore[misc]

    def copied(self, since: float) -> list[float]:
        last = self.app.lending.homes.copied_at(self.lease, 0)
        return [last] if last is not None and last > since else []

    def lose(self) -> None:
        self.step("The machine dies without a word.")
        self.lost = self.its_lease().nodes[0]
        (node,) = self.app.fleet.list(ids=[self.lost])
        machine = self.fleet.machine_of(node)
        if machine is None:
            raise LookupError(node.name)
        self.machine = machine
        self.app.driver(self.stack.site).stop(self.machine.name)
        began = time.monotonic()
        self.wait(self.moved, 1)
        answered = self.ssh("true")[1] == 0
        took = duration(time.monotonic() - began)
        self.claim(
            f"the lease moved; the same address and host key work again after {took}",
            holds=answered,
        )
        self.claim("the student's files are there", holds=self.ssh("cat thesis")[0] == "precious\n")

    def moved(self) -> list[bool]:
        lease = self.its_lease()
        return [True] if lease.state == "active" and self.lost not in lease.nodes else []

    def its_lease(self) -> Lease:
        lease = self.app.leases.get(self.lease)
        if lease is None:
            raise LookupError(self.lease)
        return lease

    def ready(self, *ids: str) -> list[Node]:
        nodes = self.app.fleet.list(ids=ids) if ids else self.app.fleet.list()
        return [node for node in nodes if node.state == "ready"]

    def bring_back(self) -> None:
        from essaim.usecases.machines import targets

        self.step("The lost machine comes back, with the student's account still on its disk.")
        self.app.driver(self.stack.site).start(self.machine.name)
        (target,) = targets(self.app, self.stack, [self.machine])
        self.app.remote.drop(target.name)
        self.app.remote.reach(target, within=PATIENCE)
        before = self.app.remote.run(target, f"id {self.lease}", within=PATIENCE).exit_code == 0
        self.fleet.start_agent(target)
        self.wait(lambda: self.ready(self.lost), 1)
        after = self.app.remote.run(target, f"id {self.lease}", within=PATIENCE).exit_code == 0
        self.claim("it was cleaned before it serves again", holds=before and not after)

    def release(self) -> None:
        self.step("The student gives the machine back.")
        self.call("release", self.student, lease=self.lease)
        ended = self.wait(lambda: [True] if self.its_lease().state == "ended" else [], 1)
        self.claim("released, and the machine proven clean", holds=bool(ended))
        self.claim("the key opens nothing any more", holds=self.ssh("true")[1] != 0)

    # -- the props ------------------------------------------------------------------------------

    def wait(self, look: Callable[[], list[Any]], count: int) -> list[Any]:
        deadline = time.monotonic() + PATIENCE
        while len(found := look()) < count and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def login(self, name: str, password: str) -> str:
        return str(self.call("login", None, name=name, password=password)["access"])

    def call(self, path: str, token: str | None, **body: Any) -> dict[str, Any]:
        import httpx

        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = httpx.post(f"{self.base}/api/{path}", json=body, headers=headers, timeout=60)
        answer.raise_for_status()
        return dict(answer.json())

    def ssh(self, command: str) -> tuple[str, int]:
        words = [
            "ssh", "-F", os.devnull, "-i", str(self.place / "key"), "-o", "BatchMode=yes",
            "-o", f"UserKnownHostsFile={self.place / 'known_hosts'}", "-o", "LogLevel=ERROR",
            "-o", "StrictHostKeyChecking=yes", "-p", str(self.plane.gateway.port),
            f"{self.lease}@127.0.0.1", command,
        ]  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
        return done.stdout, done.returncode
