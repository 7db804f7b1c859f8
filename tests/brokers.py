"""Real brokers for tests: a private Redis and a private RabbitMQ on free ports.

Fixtures: `brokers(kind)` is a running broker; `broker` is one, of each kind in turn, emptied.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from databases import PATIENCE, as_user, find, folder_of
from essaim_lab.computer import free_port

BROKERS = ("redis", "rabbitmq")
QUEUES = ("essaim.any", "essaim.site.a", "essaim.site.b")


class Broker:
    """One broker, which can be stopped, started again, and made to forget."""

    def __init__(self, kind: str, folder: Path, address: str = "127.0.0.1") -> None:
        self.kind = kind
        self.address = address
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._names: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        if self.kind == "redis":
            return f"redis://{self.address}:{self.port}/0"
        return f"amqp://guest:guest@{self.address}:{self.port}//"

    def start(self) -> None:
        # Its guest comes from the computer itself, unless told that it comes from elsewhere.
        (self._folder / "settings.conf").write_text("loopback_users = none\n")
        if self.kind == "rabbitmq" and self._names is None:
            # Erlang would start its name service by itself, as a daemon that nobody ends.
            epmd = [find("epmd", "erlang-base"), "-address", "127.0.0.1"]
            self._names = subprocess.Popen([*epmd, "-port", str(self._ports[0])])
            self._until(lambda: _listens("127.0.0.1", self._ports[0]), "epmd does not listen")
        log = self._folder / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command(),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                cwd=self._folder,
                env=self._environ(),
                start_new_session=True,
                **as_user(self.kind),
            )
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{self.kind} did not start:\n{log.read_text()}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it as a power cut would: what is not on disk is lost."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        # What has ended is RabbitMQ's script: Erlang, which has the port, may take a moment more.
        self._until(lambda: not _listens(self.address, self.port), f"{self.kind} still listens")

    def close(self) -> None:
        self.stop()
        if self._names is not None:
            self._names.kill()
            self._names.wait()

    def forget(self) -> None:
        """Lose every message."""
        if self.kind == "redis":
            self._redis("FLUSHALL")
            return
        self._purge()

    def messages(self) -> dict[str, int]:
        """How many messages lie in each of our queues that has some."""
        from celery import Celery

        found = {}
        with Celery("count", broker=self.url).connection() as connection:
            for queue in QUEUES:
                with (
                    contextlib.suppress(connection.channel_errors),
                    connection.channel() as channel,
                ):
                    found[queue] = channel.queue_declare(queue, passive=True).message_count
        return {queue: count for queue, count in found.items() if count}

    def _redis(self, *words: str) -> bytes:
        with socket.create_connection((self.address, self.port), timeout=PATIENCE) as link:
            link.sendall((" ".join(words) + "\r\n").encode())
            return link.recv(4096)

    def _purge(self) -> None:
        from celery import Celery

        with Celery("purge", broker=self.url).connection() as connection:
            for queue in QUEUES:
                with (
                    contextlib.suppress(connection.channel_errors),
                    connection.channel() as channel,
                ):
                    channel.queue_purge(queue)

    @staticmethod
    def _until(condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, what
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.address, self.port), timeout=2) as link:
                link.sendall(b"PING\r\n" if self.kind == "redis" else b"AMQP\x00\x00\x09\x01")
                return bool(link.recv(1))
        except OSError:
            return False

    def _command(self) -> list[str]:
        if self.kind == "redis":
            words = ["--port", str(self.port), "--bind", self.address, "--dir", str(self._folder)]
            return [
                find("redis-server", "redis-server"),
                *words,
                "--save",
                "",
                "--appendonly",
                "no",
                "--protected-mode",
                "no",
            ]
        find("rabbitmq-server", "rabbitmq-server")
        return ["/usr/lib/rabbitmq/bin/rabbitmq-server"]  # the one in PATH wants to be root

    def _environ(self) -> dict[str, str]:
        if self.kind == "redis":
            return dict(os.environ)
        folder = self._folder
        names, dist = self._ports
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(folder),  # its cookie
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(names),
            "RABBITMQ_NODENAME": f"essaim{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": self.address,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(dist),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_CONFIG_FILE": str(folder / "settings"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none-env"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            # No busy waiting: the machine is shared.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
        }

    @property
    def _ports(self) -> tuple[int, int]:
        if not hasattr(self, "_erlang"):
            self._erlang = (free_port(), free_port())
        return self._erlang


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=PATIENCE).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def running(kind: str) -> Iterator[Broker]:
    package = f"{kind}-server"
    find(package, package)  # first: it also makes the user
    with folder_of(kind) as folder:
        broker = Broker(kind, folder)
        broker.start()
        try:
            yield broker
        finally:
            broker.close()


@pytest.fixture(scope="session")
def brokers() -> Iterator[Callable[[str], Broker]]:
    """The brokers, each started when first asked for."""
    started: dict[str, Broker] = {}
    with contextlib.ExitStack() as stack:

        def get(kind: str) -> Broker:
            if kind not in started:
                started[kind] = stack.enter_context(running(kind))
            return started[kind]

        yield get


@pytest.fixture(params=BROKERS)
def broker(request, brokers) -> Broker:
    """A broker without messages, of each kind in turn."""
    found = brokers(request.param)
    found.forget()
    return found
