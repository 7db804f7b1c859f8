"""A database that can be killed, slowed and filled up: its data lies on a small disk of its own.

It keeps what it has committed, as Debian ships it: nothing is switched off that protects data.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import sqlalchemy as sa

from databases import PATIENCE, answers, as_user, find

USER = {"mariadb": "mysql", "postgresql": "postgres"}
PORT = {"mariadb": 3306, "postgresql": 5432}
#: How much fits on its disk, in MiB.
ROOM = 640
CHUNK = bytes(1 << 20)


class Server:
    """One database server, reached through a socket that is a file and at an address."""

    def __init__(self, kind: str, place: Path) -> None:
        self.kind, self.place = kind, place
        self.address = "127.0.0.1"
        self.disk = place / "disk"
        self._process: subprocess.Popen[bytes] | None = None
        self._slow: threading.Thread | None = None
        self._over = threading.Event()

    # -- making it --------------------------------------------------------------------------------

    def make(self) -> None:
        """Make its disk and an empty database, and start it for whoever reaches its socket."""
        maker = {"mariadb": self._install_mariadb, "postgresql": self._install_postgresql}
        find("mariadbd" if self.kind == "mariadb" else "postgres", f"{self._package}")
        self.disk.mkdir(parents=True)
        size = ["-o", f"size={ROOM}m,mode=0755"]
        subprocess.run(["mount", "-t", "tmpfs", *size, "essaim-chaos", self.disk], check=True)
        os.chown(self.disk, *_ids(USER[self.kind]))
        maker[self.kind]()
        self.start()
        engine = sa.create_engine(self._url("mysql", "postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text("CREATE DATABASE essaim"))
            if self.kind == "mariadb":
                connection.execute(sa.text("GRANT ALL ON essaim.* TO essaim@'%'"))
        engine.dispose()

    def close(self) -> None:
        if self._process is not None:
            self.end(signal.SIGKILL)
        if os.path.ismount(self.disk):
            subprocess.run(["umount", self.disk], check=True)

    @property
    def near(self) -> str:
        """The URL for whoever sees its socket."""
        return self._url("essaim", "essaim")

    @property
    def far(self) -> str:
        """The URL for whoever comes over the network."""
        scheme = "mariadb" if self.kind == "mariadb" else "postgresql"
        user = "essaim" if self.kind == "mariadb" else "postgres"
        return f"{scheme}://{user}@{self.address}:{PORT[self.kind]}/essaim"

    def _url(self, mariadb: str, postgresql: str) -> str:
        if self.kind == "mariadb":
            return f"mariadb+pymysql://root@/{mariadb}?unix_socket={self.disk}/s"
        return f"postgresql+psycopg://postgres@/{postgresql}?host={self.disk}"

    @property
    def _package(self) -> str:
        return "mariadb-server" if self.kind == "mariadb" else "postgresql"

    def _install_mariadb(self) -> None:
        words = [find("mariadb-install-db", "mariadb-server"), "--no-defaults"]
        words += [f"--datadir={self.disk}/data", f"--tmpdir={self.disk}", "--skip-test-db"]
        words += ["--auth-root-authentication-method=normal"]
        self._install(words)

    def _install_postgresql(self) -> None:
        words = [find("initdb", "postgresql"), "-A", "trust", "-U", "postgres", "-E", "UTF8"]
        self._install([*words, "--locale=C.UTF-8", "-D", f"{self.disk}/data"])
        with (self.disk / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.79.0.0/24 trust\n")

    def _install(self, words: list[str]) -> None:
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=self.disk,
                       **as_user(USER[self.kind]))  # fmt: skip

    # -- its life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it, and wait until it answers."""
        log = self.place / "database.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command(), stdout=output, stderr=output, cwd=self.disk,
                start_new_session=True, **as_user(USER[self.kind]),
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while not answers(self._url("mysql", "postgres")):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace")[-4000:]
                raise RuntimeError(f"{self.kind} did not start:\n{said}")
            time.sleep(0.1)

    def end(self, number: int) -> None:
        """End it: SIGKILL is a crash, which it must survive; the other signal is its own."""
        assert self._process is not None
        if number != signal.SIGKILL and self.kind == "postgresql":
            number = signal.SIGINT  # SIGTERM would wait for clients
        kill = os.killpg if number == signal.SIGKILL else os.kill
        with contextlib.suppress(ProcessLookupError):
            kill(self._process.pid, number)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def mend(self) -> None:
        """Start it again if it has ended, as whoever watches over services would."""
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def fill(self) -> None:
        """Leave nothing of its disk."""
        with (self.disk / "filler").open("wb", buffering=0) as filler:
            with contextlib.suppress(OSError):
                while True:
                    filler.write(CHUNK)
            with contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(4096))

    def empty(self) -> None:
        """Give the room back."""
        (self.disk / "filler").unlink(missing_ok=True)

    def slow(self) -> None:
        """From now on it works an eighth of the time."""
        self._over.clear()
        self._slow = threading.Thread(target=self._stutter, name="slow", daemon=True)
        self._slow.start()

    def hurry(self) -> None:
        """It is as quick as before."""
        if self._slow is not None:
            self._over.set()
            self._slow.join()
            self._slow = None

    def _stutter(self) -> None:
        assert self._process is not None
        group = self._process.pid
        with contextlib.suppress(ProcessLookupError):
            while not self._over.is_set():
                os.killpg(group, signal.SIGSTOP)
                self._over.wait(0.35)
                os.killpg(group, signal.SIGCONT)
                self._over.wait(0.05)

    def _command(self) -> list[str]:
        if self.kind == "mariadb":
            first = self.disk / "first.sql"
            first.write_text("CREATE USER IF NOT EXISTS essaim@'%';\n")
            os.chmod(first, 0o644)
            return [
                find("mariadbd", "mariadb-server"), "--no-defaults", f"--datadir={self.disk}/data",
                f"--tmpdir={self.disk}", f"--socket={self.disk}/s", f"--pid-file={self.disk}/pid",
                f"--port={PORT[self.kind]}", f"--bind-address={self.address}",
                f"--init-file={first}", "--innodb-buffer-pool-size=64M", "--max-connections=400",
                "--skip-name-resolve",
            ]  # fmt: skip
        options = {
            "max_connections": "400",
            "max_wal_size": "128MB",
            "listen_addresses": self.address,
            "unix_socket_directories": str(self.disk),
        }
        words = [find("postgres", "postgresql"), "-D", f"{self.disk}/data", "-p"]
        words += [str(PORT[self.kind])]
        return words + [part for key, value in options.items() for part in ("-c", f"{key}={value}")]


def _ids(user: str) -> tuple[int, int]:
    import pwd

    found = pwd.getpwnam(user)
    return found.pw_uid, found.pw_gid
