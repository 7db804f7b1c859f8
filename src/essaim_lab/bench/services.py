"""Servers a benchmark needs beside what it measures: private ones, on free ports, gone with it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.model.errors import SetupError
from essaim_lab import computer
from essaim_lab.bench.rows import CannotRunError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

PATIENCE = 120.0

#: How each kind of database is spoken to.
DRIVERS = {"postgresql": "postgresql+psycopg", "mariadb": "mariadb+pymysql"}

#: Room for every client of every measurement; all else is as Debian ships it.
CONNECTIONS = 300


def find(program: str, package: str) -> str:
    """Give the program's path; its Debian package is installed when root may.  CannotRunError."""
    try:
        return computer.find(program, package)
    except SetupError as error:
        raise CannotRunError(f"{error.what}: {error.hint}") from error


@contextmanager
def running(
    command: Sequence[str],
    *,
    ready: Callable[[], bool],
    ends_by: int = signal.SIGTERM,
    user: str = "",
    log: Path,
    environ: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the end; it is there when `ready` says so."""
    who = {"user": user, "group": user, "extra_groups": []} if user and os.geteuid() == 0 else {}
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            cwd=log.parent, env=environ, start_new_session=True, **who,
        )  # type: ignore[call-overload]  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                said = "\n    ".join(log.read_text(errors="replace").splitlines()[-15:])
                raise CannotRunError(f"{command[0]} did not start\n    {said}")
            time.sleep(0.05)
        yield process
    finally:
        process.send_signal(ends_by)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(port: int) -> bool:
    """Whether somebody listens on a port of the loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Server:
    """A database server; databases are made in it with `new`."""

    kind: str  #: as it is called in a database's address
    where: str  #: `user@127.0.0.1:PORT`
    pid: int

    def new(self, name: str) -> str:
        """Make an empty database; gives its address, as Essaim is told it."""
        return f"{self.kind}://{new_database(self.where, name, self.kind)}"


@contextmanager
def postgresql() -> Iterator[str]:
    """Run PostgreSQL with Debian's settings; gives `postgres@127.0.0.1:PORT`."""
    with postgresql_server() as found:
        yield found.where


@contextmanager
def postgresql_server() -> Iterator[Server]:
    """Run PostgreSQL with Debian's settings."""
    server, initdb = find("postgres", "postgresql"), find("initdb", "postgresql")
    with _folder("postgres") as folder:
        data, port = folder / "data", computer.free_port()
        words = [initdb, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "-D"]
        _prepare([*words, str(data)], folder, "postgres")
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": str(CONNECTIONS),
        }
        command = [server, "-D", str(data), "-p", str(port)]
        command += [part for key, value in options.items() for part in ("-c", f"{key}={value}")]
        where = f"postgres@127.0.0.1:{port}"
        with running(
            command,
            ready=lambda: _accepts(f"{DRIVERS['postgresql']}://{where}/postgres"),
            ends_by=signal.SIGQUIT,
            user="postgres",
            log=folder / "log",
        ) as process:
            yield Server("postgresql", where, process.pid)


@contextmanager
def mariadb_server() -> Iterator[Server]:
    """Run MariaDB with its own settings."""
    server = find("mariadbd", "mariadb-server")
    install = find("mariadb-install-db", "mariadb-server")
    with _folder("mysql") as folder:
        data, port = folder / "data", computer.free_port()
        # A starting server removes every temporary table it finds, also those of its neighbours.
        own = ["--no-defaults", f"--datadir={data}", f"--tmpdir={folder}"]
        words = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        _prepare([install, *own, *words], folder, "mysql")
        command = [
            *(server, *own, f"--socket={folder}/s", f"--pid-file={folder}/pid"),
            *(f"--port={port}", "--bind-address=127.0.0.1", "--skip-name-resolve"),
            f"--max-connections={CONNECTIONS}",
        ]
        where = f"root@127.0.0.1:{port}"
        with running(
            command,
            ready=lambda: _accepts(f"{DRIVERS['mariadb']}://{where}/mysql"),
            ends_by=signal.SIGKILL,
            user="mysql",
            log=folder / "log",
        ) as process:
            yield Server("mariadb", where, process.pid)


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker of messages."""

    url: str
    port: int
    pid: int


@contextmanager
def redis() -> Iterator[int]:
    """Run Redis that keeps nothing on disk; gives its port."""
    with redis_server() as found:
        yield found.port


@contextmanager
def redis_server() -> Iterator[Broker]:
    """Run Redis that keeps nothing on disk."""
    server = find("redis-server", "redis-server")
    with _folder("") as folder:
        port = computer.free_port()
        command = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        with running(command, ready=lambda: answers(port), log=folder / "log") as process:
            yield Broker(f"redis://127.0.0.1:{port}/0", port, process.pid)


def new_database(where: str, name: str, kind: str = "postgresql") -> str:
    """Make an empty database; gives where it is, without a driver's name."""
    import sqlalchemy as sa  # noqa: PLC0415 - heavy

    own = "postgres" if kind == "postgresql" else "mysql"
    engine = sa.create_engine(f"{DRIVERS[kind]}://{where}/{own}")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return f"{where}/{name}"


def _prepare(command: Sequence[str], folder: Path, user: str) -> None:
    who = {"user": user, "group": user, "extra_groups": []} if os.geteuid() == 0 else {}
    subprocess.run(list(command), check=True, stdout=subprocess.DEVNULL, cwd=folder, **who)  # type: ignore[call-overload]


def _accepts(url: str) -> bool:
    import sqlalchemy as sa  # noqa: PLC0415 - heavy

    engine = sa.create_engine(url)
    try:
        engine.connect().close()
    except sa.exc.OperationalError:
        return False
    finally:
        engine.dispose()
    return True


@contextmanager
def _folder(user: str) -> Iterator[Path]:
    # Below /tmp, whatever TMPDIR is: the server's own user must be able to get there.
    with tempfile.TemporaryDirectory(prefix="essaim-bench-", dir="/tmp") as name:
        if user and os.geteuid() == 0:
            shutil.chown(name, user, user)
        yield Path(name)
