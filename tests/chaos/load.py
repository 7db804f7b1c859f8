"""People who rent, extend, log in and release all along, and somebody who applies a stack.

They behave as clients should: what was not answered is asked again with the same key.
"""

from __future__ import annotations

import datetime as dt
import random
import secrets
import subprocess
import threading
import time
from typing import Any

import httpx

from chaos.history import History
from chaos.plane import CADDY, Plane
from endtoend.fleet_rig import ROOT

#: Answers that say nothing about the request: it is asked again.
AGAIN = (429, 500, 502, 503, 504)
OVER = ("ended", "failed")
HOUR = 3600


class Person(threading.Thread):
    """Somebody who rents, uses and releases until it is over, then keeps what they have."""

    def __init__(self, plane: Plane, name: str, history: History, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self._plane, self._history = plane, history
        self._choose = random.Random(seed)
        self._over = threading.Event()
        self._http = httpx.Client(base_url=f"http://{plane.address}:{CADDY}/api/", timeout=15)
        self._password = secrets.token_urlsafe(12)
        self._token = ""
        self.key = plane.new_key()
        self.kept: str | None = None  #: the lease they still have when they stop
        self.broken: str = ""

    def sign_up(self) -> None:
        self._plane.post("signup", name=self.name, password=self._password)
        grown = {"machines": 10, "hours": 100_000}
        changed = self._plane.call("PATCH", f"users/{self.name}", self._plane.admin, **grown)
        assert changed.is_success, changed.text

    def stop(self) -> None:
        self._over.set()

    def run(self) -> None:
        number = 0
        try:
            while not self._over.is_set():
                number += 1
                self._once(f"{self.name}-{number}")
        except Exception as error:  # noqa: BLE001 - whatever stops a client is told
            self.broken = f"{self.name} could not go on: {error!r}"

    def _once(self, key: str) -> None:
        public = self.key.with_suffix(".pub").read_text().strip()
        wish = {"seconds": HOUR, "patience": 5, "public_key": public}
        wish["count"] = 2 if self._choose.random() < 0.15 else 1
        told = self.ask("rent", key=key, **wish)
        lease = told["id"]
        self._history.note("rented", who=self.name, key=key, lease=lease, state=told["state"])
        if self._await_active(lease):
            self._use(lease)
        if self._over.is_set():
            self.kept = lease
            return
        self.release(lease)

    def _await_active(self, lease: str) -> bool:
        """Wait for it, however long it takes, unless it is over or nobody is wanted any more."""
        while not self._over.is_set():
            found = self.look(lease)
            if found["state"] == "active":
                self._history.note("active", who=self.name, lease=lease)
                return True
            if found["state"] in OVER:
                self._history.note("given up", lease=lease, reason=found.get("reason", ""))
                return False
            self._over.wait(0.5)
        return False

    def _use(self, lease: str) -> None:
        for _ in range(self._choose.randint(0, 2)):
            done = self.ssh(lease, "hostname")
            self._history.note("login", lease=lease, code=done)
            self._over.wait(self._choose.uniform(0, 3))
        if self._choose.random() < 0.5:
            told = self.ask("extend", lease=lease, seconds=60)
            until = dt.datetime.fromisoformat(told["expires_at"])
            self._history.note("extended", lease=lease, until=int(until.timestamp() * 1000))

    def release(self, lease: str) -> None:
        self.ask("release", lease=lease)
        self._history.note("released", lease=lease)

    # -- how they ask -----------------------------------------------------------------------------

    def look(self, lease: str) -> dict[str, Any]:
        return self._ask("GET", f"leases/{lease}", "", {})

    def ask(self, verb: str, *, key: str = "", **body: Any) -> dict[str, Any]:
        return self._ask("POST", verb, key, body)

    def _ask(self, method: str, path: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
        while True:
            answer = self._answer(method, path, key, body)
            if answer is not None and answer.is_success:
                return dict(answer.json())
            if answer is not None and answer.status_code not in (401, *AGAIN):
                self._history.note(
                    "refused", who=self.name, path=path, code=answer.status_code, text=answer.text
                )
                raise RuntimeError(f"{path}: {answer.status_code} {answer.text}")
            if answer is not None and answer.status_code == 401:
                self._log_in()
            time.sleep(self._choose.uniform(0.2, 1.0))

    def _answer(
        self, method: str, path: str, key: str, body: dict[str, Any]
    ) -> httpx.Response | None:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        if key:
            headers["Idempotency-Key"] = key
        try:
            answer = self._http.request(method, path, json=body or None, headers=headers)
        except httpx.LocalProtocolError:
            raise  # ours: asking again would not help
        except httpx.HTTPError as error:
            self._history.note("no answer", path=path, error=type(error).__name__)
            return None
        if not answer.is_success:
            self._history.note("answer", path=path, code=answer.status_code)
        return answer

    def _log_in(self) -> None:
        body = {"name": self.name, "password": self._password}
        answer = self._answer("POST", "login", "", body)
        if answer is not None and answer.is_success:
            self._token = answer.json()["access"]

    def ssh(self, lease: str, *command: str) -> int:
        """Log in through one of the gateways; gives the exit code, -1 when it takes too long."""
        port = str(self._choose.choice(self._plane.GATEWAY))
        alive = ["ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=2"]
        words = ["ssh", *self._plane.options(self.key), "-p", port]
        words += [word for each in alive for word in ("-o", each)]
        try:
            return subprocess.run(
                [*words, f"{lease}@{self._plane.address}", *command],
                capture_output=True, stdin=subprocess.DEVNULL, timeout=40, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return -1


class Applier(threading.Thread):
    """Somebody who wants one machine of a stack, then two, then one…, through the workers."""

    STACK, WHERE = "bare", str(ROOT / "examples" / "bare")

    def __init__(self, plane: Plane, history: History) -> None:
        super().__init__(name="applier", daemon=True)
        self._plane, self._history = plane, history
        self._over = threading.Event()

    def stop(self) -> None:
        self._over.set()

    def run(self) -> None:
        wanted = 1
        while not self._over.is_set():
            self.apply(wanted, within=90)
            wanted = 3 - wanted
            self._over.wait(3)

    def apply(self, wanted: int, *, within: float) -> int:
        code = self._plane.command("up", self.WHERE, f"nodes={wanted}", "--yes", within=within)
        self._history.note("applied", wanted=wanted, code=code)
        return code

    def remove(self, *, within: float) -> int:
        return self._plane.command("down", self.STACK, "--yes", within=within)
