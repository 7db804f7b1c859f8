"""People and machines that use a control plane all along, repeat nothing, and note what it said."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Self

import httpx

from upgrade.plane import Plane, wait

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx1rKqXl7ZJcG9Vt0mC3o2y5QnC8m8m0mJ3H1g0Yy2k me@here"
BETWEEN = 0.03
AGAIN = 0.3  #: as essaim.cli.client
#: Leases that each person keeps to the end.
KEPT = 3


class Refused(Exception):  # noqa: N818 - it is what happened
    """A request that did not succeed."""


class Client:
    """Somebody who shows a token."""

    def __init__(self, plane: Plane, token: str = "") -> None:
        self._http = plane.client()
        self.token = token
        self.done: Counter[str] = Counter()

    def ask(self, method: str, path: str, *, key: str = "", since: str = "", **body: Any) -> Any:
        """Send one request; a second time only when no server has seen it.

        So do commands, and machines. While Caddy reloads its configuration it breaks connections
        that it has not answered, and answers 503 without a body to requests that wait for a server.
        """
        told = {"Idempotency-Key": key, "Last-Event-ID": since}
        told["Authorization"] = f"Bearer {self.token}" if self.token else ""
        headers = {name: value for name, value in told.items() if value}
        what = f"{method} {path.partition('/l-')[0].partition('?')[0]}"
        try:
            try:
                answer = self._http.request(method, path, json=body or None, headers=headers)
                unsent = answer.status_code == 503 and not answer.content
            except httpx.ConnectError:
                unsent = True
            if unsent:
                time.sleep(AGAIN)
                answer = self._http.request(method, path, json=body or None, headers=headers)
        except httpx.HTTPError as error:
            raise Refused(f"{what}: {error!r}") from error
        if not answer.is_success:
            raise Refused(f"{what}: {answer.status_code} {answer.text[:300]}")
        self.done[what] += 1
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text

    def close(self) -> None:
        self._http.close()


class Person(Client):
    """Somebody who rents, looks, extends and releases; notes which leases they ought to have."""

    def __init__(self, plane: Plane, name: str) -> None:
        super().__init__(plane)
        self.name, self.password = name, secrets.token_urlsafe(12)
        self.ended: list[str] = []
        self.kept: dict[str, tuple[list[str], Any]] = {}  #: lease: its machines and its end
        self.refresh = ""

    def sign_up(self, admin: Client) -> None:
        self.ask("POST", "signup", name=self.name, password=self.password)
        admin.ask("PATCH", f"users/{self.name}", machines=100, hours=10_000)
        self.log_in()

    def log_in(self) -> None:
        told = self.ask("POST", "login", name=self.name, password=self.password)
        self.token, self.refresh = told["access"], told["refresh"]

    def live(self, held: dict[str, str]) -> Iterator[None]:
        """Go through the life of lease after lease, request by request.

        `held` is who has which machine, as far as clients know.
        """
        for number in itertools.count():
            made = self.ask("POST", "rent", key=f"{self.name}-{number}", public_key=KEY,
                            seconds=3600, patience=5)  # fmt: skip
            while made["state"] != "active":
                assert made["state"] in ("queued", "granted"), made
                yield
                made = self.ask("GET", f"leases/{made['id']}")
            its = [node["id"] for node in made["machines"]]
            for each in its:
                assert held.setdefault(each, made["id"]) == made["id"], f"{each} has two holders"
            yield
            longer = self.ask("POST", "extend", lease=made["id"], seconds=600)
            self.kept[made["id"]] = (its, longer["expires_at"])
            yield
            assert self.ask("GET", f"leases/{made['id']}")["expires_at"] == longer["expires_at"]
            self.ask("GET", "leases?limit=5")
            yield
            assert made["id"] in self.ask("GET", "events?follow=false", since="0")
            yield
            if number % 4 == 0 and len(self.kept) <= KEPT:
                continue
            del self.kept[made["id"]]
            for each in its:
                del held[each]
            self.ask("POST", "release", lease=made["id"])
            self.ended.append(made["id"])
            yield


class Agent(Client):
    """A machine that says that it lives."""

    def __init__(self, plane: Plane, name: str) -> None:
        super().__init__(plane)
        self.name, self.id = name, ""

    def join(self, enrolment: str) -> None:
        key = f"ssh-ed25519 {secrets.token_hex(34)}"
        told = self.ask("POST", "workers/register", token=enrolment, name=self.name, cores=2,
                        memory=2048, address="192.0.2.1", host_key=key)  # fmt: skip
        self.token, self.id = told["credential"], told["node_id"]

    def live(self, _held: dict[str, str]) -> Iterator[None]:
        for number in itertools.count(1):
            self.ask("POST", "workers/heartbeat", boot_id="b-1", seq=number)
            yield


class Load:
    """All of them at once, while this is open."""

    def __init__(self, people: list[Person], agents: list[Agent]) -> None:
        self.bad: list[str] = []
        self._over = threading.Event()
        self._held: dict[str, str] = {}
        # One thread for all machines: their beats are few.
        crews: list[list[Person] | list[Agent]] = [*([each] for each in people), agents]
        self._people = people
        self._everybody: list[Client] = [*people, *agents]
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in crews]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, crew: list[Person] | list[Agent]) -> None:
        lives = [each.live(self._held) for each in crew]
        for life in itertools.cycle(lives):
            if self._over.wait(BETWEEN):
                return
            try:
                next(life)
            except Exception as error:  # noqa: BLE001 - whatever it is, the test is told
                self.bad.append(str(error))
                return

    @property
    def done(self) -> Counter[str]:
        """How many requests of each kind succeeded."""
        return sum((each.done.copy() for each in self._everybody), Counter())

    def goes_on(self) -> None:
        """Wait until everybody has released something more."""
        before = [len(each.ended) for each in self._people]

        def all_have() -> bool:
            now = [len(each.ended) for each in self._people]
            return all(more > some for some, more in zip(before, now, strict=True))

        wait(lambda: self.bad or all_have(), "releases")
        assert not self.bad, self.bad
