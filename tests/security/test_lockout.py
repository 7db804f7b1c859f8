"""Whoever guesses passwords keeps nobody out but themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import httpx
import pytest

from api.rig import PASSWORD, is_problem
from essaim.bootstrap import App
from essaim.cli.plane import ApiServer, listening
from essaim.model.fleet import Role
from essaim.usecases.credentials import hash_password

#: Where the proxy is: not on the address that a server trusts by itself.
PROXY = "127.0.0.2"
GUESSER, OTHER = "198.51.100.7", "198.51.100.8"
RIGHT = {"name": "admin", "password": PASSWORD}


def wrong(name: str) -> dict[str, str]:
    return {"name": name, "password": "wrong wrong wrong"}


def refused(front: Front, via: Callable[[int], str], **more: str) -> None:
    """Guess as somebody who says to be at `via(number)` until that is refused."""
    # One more is let pass every six seconds: sixty tries are enough on any computer.
    for number in range(60):
        answer = front.login(wrong("admin"), via(number), **more)
        if answer.status_code != 401:
            break
    is_problem(answer, 429, "too-many")
    assert number >= 10, "a mistyped password is no attack"


class Front:
    """An API as `essaim api` serves it, behind a proxy."""

    def __init__(self, url: str, app: App) -> None:
        self._url = url
        self.app = app
        self._clients: dict[str, httpx.Client] = {}

    def login(self, body: dict[str, str], via: str = "", peer: str = PROXY) -> httpx.Response:
        """Log in through whoever has the address `peer`, which says that `via` asked."""
        if peer not in self._clients:
            transport = httpx.HTTPTransport(local_address=peer)
            self._clients[peer] = httpx.Client(
                base_url=self._url, transport=transport, timeout=60, trust_env=False
            )
        headers = {"X-Forwarded-For": via} if via else {}
        return self._clients[peer].post("/api/login", json=body, headers=headers)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


@pytest.fixture
def front(tmp_path):
    environ = {
        "ESSAIM_HOME": str(tmp_path),
        "HOME": str(tmp_path),
        "ESSAIM_TRUSTED_PROXIES": f"{PROXY} 10.0.0.0/8",
    }
    with contextlib.ExitStack() as stack:
        app = App(environ, kind="api")
        stack.callback(app.close)
        app.people.add("admin", hash_password(PASSWORD), role=Role.ADMIN)
        listener = listening("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = ApiServer(app, [listener], gateway=("localhost", 2222), url=url)
        server.start()
        stack.callback(server.stop)
        made = Front(url, app)
        stack.callback(made.close)
        yield made


def test_bad_logins_behind_a_proxy_deny_nobody_else(front):
    for number in range(80):
        assert front.login(wrong(f"name-{number}"), GUESSER).status_code in (401, 429)
    assert front.login(RIGHT, OTHER).status_code == 200


def test_wrong_guesses_at_a_name_do_not_keep_its_owner_out(front):
    refused(front, lambda _number: GUESSER)
    for _time in range(12):
        assert front.login(RIGHT, OTHER).status_code == 200


def test_nobody_gets_more_guesses_by_saying_to_be_somebody_else(front):
    refused(front, lambda number: f"192.0.2.{number}, 203.0.113.9, {GUESSER}, 10.1.2.3")
    assert front.login(RIGHT, OTHER).status_code == 200
    # Past the proxy nothing that is said counts.
    refused(front, lambda number: f"192.0.2.{number}", peer="127.0.0.3")
    assert front.login(RIGHT, "192.0.2.0").status_code == 200


def test_the_audit_trail_names_the_client_and_not_the_proxy(front):
    front.login(wrong("admin"), f"192.0.2.1, {GUESSER}")
    front.login(RIGHT, OTHER)
    front.login(RIGHT, "192.0.2.1", peer="127.0.0.3")  # no proxy of ours: it speaks for itself
    front.app.audit.seal()
    found = [(each.entry.outcome, each.entry.address) for each in front.app.audit.entries()]
    assert found == [("refused", GUESSER), ("done", OTHER), ("done", "127.0.0.3")]


def test_the_addresses_of_one_ipv6_network_are_one_client(front):
    refused(front, lambda number: f"2001:db8:1:2::{number:x}")
    assert front.login(RIGHT, "2001:db8:1:3::1").status_code == 200


def test_a_flood_from_one_network_does_not_hold_up_another():
    from essaim.api.limits import TooManyError
    from essaim.api.password_gate import PasswordGate

    async def play() -> tuple[list[str], int, int]:
        gate = PasswordGate(at_once=2, waiting=20)
        served: list[str] = []
        busy = most = 0
        closed = asyncio.Event()

        async def check(network: str) -> None:
            nonlocal busy, most
            async with gate.turn(network):
                busy += 1
                most = max(most, busy)
                served.append(network)
                await closed.wait()
                busy -= 1

        flood = [asyncio.create_task(check("guesser")) for _ in range(50)]
        await asyncio.sleep(0)
        owner = asyncio.create_task(check("owner"))
        await asyncio.sleep(0)
        closed.set()
        await owner
        done = await asyncio.gather(*flood, return_exceptions=True)
        return served, most, sum(isinstance(each, TooManyError) for each in done)

    served, most, refused = asyncio.run(play())
    assert most == 2
    # Two were being checked, and one of the flood was next in turn.
    assert served.index("owner") <= 3
    assert refused == 50 - 2 - 19, "the flood itself makes room"
