"""A gateway in a thread of its own, a control plane made of a dict, and OpenSSH's clients."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from drivers.lab import PATIENCE, Lab, wait_for
from essaim.drivers.sandbox.boot import HOST_KEY
from essaim.gateway.gateway import Gateway
from essaim.gateway.routes import Refusal, Route, SessionStart
from essaim.model.names import MachineName

ACCOUNT = "l-abcd1234"
HOUR = 3600.0


class Book:
    """The control plane: what it knows is what the test wrote here."""

    def __init__(self) -> None:
        self.leases: dict[str, Route] = {}
        self.refusals: dict[str, Refusal] = {}
        self.asked = 0  #: how often somebody wanted to know of a lease
        self.node_keys: dict[str, str] = {}
        self.sessions: dict[str, SessionStart] = {}
        self._numbers = itertools.count()  #: the gateway asks in several threads at once
        self.bytes: dict[str, tuple[int, int]] = {}
        self.strangers: list[SessionStart] = []

    def lease(self, name):
        self.asked += 1
        return self.leases.get(name)

    def refusal(self, name):
        return self.refusals.get(name)

    def node_key(self, node):
        return self.node_keys.get(node)

    def opened(self, session):
        name = f"s-{next(self._numbers)}"
        self.sessions[name] = session
        return name

    def closed(self, session_id, bytes_in, bytes_out):
        assert session_id not in self.bytes, "closed twice"
        self.bytes[session_id] = (bytes_in, bytes_out)

    def turned_away(self, session):
        self.strangers.append(session)

    def change(self, account: str = ACCOUNT, **what: Any) -> None:
        self.leases[account] = dataclasses.replace(self.leases[account], **what)

    def all_closed(self) -> bool:
        return self.sessions.keys() == self.bytes.keys()


@contextlib.contextmanager
def running(gateway: Gateway, prepare: Callable[[], None] = lambda: None) -> Iterator[Gateway]:
    """The gateway, started; `prepare` is called first in the thread that its own comes from."""

    def start() -> None:
        prepare()
        gateway.start()

    with ThreadPoolExecutor(1) as starter:
        starter.submit(start).result(PATIENCE)
    try:
        yield gateway
    finally:
        gateway.stop()
        left = [one.name for one in threading.enumerate() if one.name == "essaim-gateway"]
        assert not left


class Fleet:
    """Sandbox machines with an account for the lease, seen through a gateway."""

    def __init__(self, lab: Lab, place: Path, machines: list[MachineName]) -> None:
        self.lab = lab
        self.place = place
        self.machines = machines
        self.book = Book()
        self.client_key = lab.key.parent / "client"
        self.gateway: Gateway | None = None
        self.clients: list[subprocess.Popen[bytes]] = []
        self.entered: list[str] = []  #: words before every client's command

    def make_gateway(self, **options: Any) -> Gateway:
        made = {
            "host_key": self.place / "gateway" / "host_key",
            "login_keys": lambda: [self.lab.key],
            "reach": lambda route: self.lab.driver.dial(self.named(route.node), route.port),
            **options,
        }
        self.gateway = Gateway(self.book, **made)
        return self.gateway

    def named(self, node: str) -> MachineName:
        return next(one for one in self.machines if one.machine == node)

    def lease(self, number: int = 0, account: str = ACCOUNT, **changes: Any) -> Route:
        """Let a machine hold the lease."""
        self.book.leases[account] = self.route(number, account, **changes)
        return self.book.leases[account]

    def route(self, number: int = 0, account: str = ACCOUNT, **changes: Any) -> Route:
        """The way to the account of a lease on a machine."""
        name = self.machines[number]
        values = {
            "account": account,
            "keys": (public(self.client_key),),
            "node": name.machine,
            "address": f"10.77.0.{number + 11}",
            "host_key": public(self.lab.host_key(name.machine)),
            "expires_at": time.time() + HOUR,
        }
        return Route(**{**values, **changes})

    def root(self, number: int, command: str) -> str:
        """Run something as root on a machine, without the gateway."""
        return self.lab.run(self.machines[number], command)

    def sshd(self, number: int, *options: str, log: str = "/dev/null") -> None:
        """Start one more SSH server on a machine, with the machine's own host key."""
        name = f"/run/sshd-{abs(hash(options))}.pid"
        words = [f"HostKey={HOST_KEY}", "UsePAM=no", f"PidFile={name}", *options]
        flags = " ".join(f"-o {word}" for word in words)
        self.root(number, f"[ -e {name} ] || /usr/sbin/sshd -E {log} {flags}")
        wait_for(lambda: self.root(number, f"ls {name} || true"), "the server is there")

    def options(self, key: Path | None = None, **more: str) -> list[str]:
        assert self.gateway is not None
        known = self.place / "known_hosts"
        host = more.pop("host", "127.0.0.1")
        host_key = self.place / "gateway" / "host_key"
        if not known.exists():  # written once: it must stay true
            text = subprocess.run(
                ["ssh-keygen", "-y", "-f", str(host_key)],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            draft = known.with_suffix(f".{threading.get_ident()}")
            draft.write_text(f"gateway {text}")
            draft.replace(known)
        values = {
            "BatchMode": "yes",
            "HostName": host,
            "Port": str(self.gateway.port),
            "HostKeyAlias": "gateway",
            "UserKnownHostsFile": str(known),
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "IdentityFile": str(key or self.client_key),
            "ConnectTimeout": "60",
            **more,
        }
        return ["-F", "none", *(word for pair in values.items() for word in ("-o", "=".join(pair)))]

    def words(self, *command: str, user: str = ACCOUNT, flags=(), **more: Any) -> list[str]:
        return [*self.entered, "ssh", *self.options(**more), *flags, f"{user}@gateway", *command]

    def ssh(self, *command: str, stdin: bytes = b"", **more: Any):
        return run(self.words(*command, **more), stdin=stdin)

    def start(self, *command: str, **more: Any) -> subprocess.Popen[bytes]:
        """A client that goes on running."""
        pipe = subprocess.PIPE
        words = self.words(*command, **more)
        client = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe)
        self.clients.append(client)
        return client

    def close(self) -> None:
        """End the clients a test that failed has left."""
        for client in self.clients:
            client.kill()
            client.wait()
            for stream in (client.stdin, client.stdout, client.stderr):
                if stream is not None and not stream.closed:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()


def run(
    words: list[str], stdin: bytes = b"", patience: float = PATIENCE
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, input=stdin, capture_output=True, timeout=patience, check=False)


def public(key: Path) -> str:
    return key.with_suffix(".pub").read_text().strip()


def new_key(path: Path) -> Path:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)]
    subprocess.run(words, check=True)
    return path


def read_until(process: subprocess.Popen[bytes], mark: bytes) -> bytes:
    """What a client printed up to and with the mark."""
    assert process.stdout is not None
    fd, text, deadline = process.stdout.fileno(), b"", time.monotonic() + PATIENCE
    os.set_blocking(fd, False)
    while mark not in text:
        assert time.monotonic() < deadline, text
        try:
            piece = os.read(fd, 1 << 16)
        except BlockingIOError:
            time.sleep(0.02)
            continue
        assert piece, (text, process.stderr.read() if process.stderr else b"")
        text += piece
    os.set_blocking(fd, True)
    return text


def finish(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


__all__ = ["ACCOUNT", "Book", "Fleet", "finish", "new_key", "public", "read_until", "run",
           "running", "wait_for"]  # fmt: skip
