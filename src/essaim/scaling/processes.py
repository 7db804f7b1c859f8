"""Replicas that are processes of this computer.

Each is a file in a folder, which it writes itself.  They outlive whoever started them, who finds
them again by number and moment of start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.model.errors import SetupError, TransientError
from essaim.scaling import proc
from essaim.scaling.replicas import Replica

if TYPE_CHECKING:
    from essaim.scaling.upstreams import Upstreams

log = logging.getLogger(__name__)

#: Where a replica's port goes in its command.
PORT = "{port}"
HOST = "127.0.0.1"
#: Seconds a process has to write down that it is there.
REGISTER_WITHIN = 30.0
#: Seconds between leaving the proxy and being told to end: requests on their way still arrive.
LINGER = 2.0
#: Seconds a replica has to end before it is killed.
GRACE = 30.0
PAUSE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is written down about a replica."""

    boot: str
    pid: int
    started: str
    at: float
    port: int
    leaving: float = 0.0  #: when it was taken out of the proxy; seconds since 1970
    told: float = 0.0  #: when it was told to end


class Processes:
    """The replicas whose files are in `folder`; see `Replicas`.

    A command with a word `{port}` gets a free port there, and the proxy is told of it.
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        *,
        environ: Mapping[str, str] = os.environ,
        upstreams: Upstreams | None = None,
        linger: float = LINGER,
        grace: float = GRACE,
    ) -> None:
        self._folder, self._command, self._environ = folder, command, environ
        self._upstreams, self._linger, self._grace = upstreams, linger, grace
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(f"cannot make {folder}: {error.strerror}") from error

    def list(self) -> list[Replica]:
        """See the protocol.  Tells the proxy who answers, and sees off those that are to end."""
        serving = {}
        for name, record in self._records().items():
            stat = self._stat(name, record)
            if stat and record.leaving:
                self._see_off(name, record)
            elif stat:
                serving[name] = (record, stat)
        self._show([record for record, _ in serving.values()])
        return sorted(
            (Replica(name, stat.cpu_seconds, rec.at) for name, (rec, stat) in serving.items()),
            key=lambda each: (each.started_at, each.id),
        )

    def add(self, count: int) -> None:
        """Start so many more; back when each has written down that it is there."""
        taken = self._records()
        numbers = (number for number in range(1, len(taken) + count + 1))
        free = [str(number) for number in numbers if str(number) not in taken]
        for name, pid in [(name, self._spawn(name)) for name in free[:count]]:
            self._await(name, pid)

    def remove(self, ids: Sequence[str]) -> None:
        """Take them out of the proxy; they are told to end when it has had time to notice."""
        records = self._records()
        for name in set(ids) & set(records):
            self._write(name, dataclasses.replace(records[name], leaving=time.time()))
        records = self._records()
        self._show([record for record in records.values() if not record.leaving])
        if self._upstreams is None:
            for name in set(ids) & set(records):
                self._see_off(name, records[name])

    def end(self) -> None:
        """End all of them; back when they have ended, which takes the grace at most."""
        self.remove(list(self._records()))
        while self._records():
            self.list()
            time.sleep(PAUSE)

    def close(self) -> None:
        """Let go of the proxy."""
        if self._upstreams:
            self._upstreams.close()

    def _stat(self, name: str, record: Record) -> proc.Stat | None:
        """Look at a replica; one that has ended is forgotten."""
        stat = proc.look(record.pid) if record.boot == proc.boot() else None
        if stat and stat.started == record.started:
            return stat
        _reap(record.pid)
        if not record.leaving:
            log.warning("replica %s has ended by itself: see %s", name, self._log(name))
        self._file(name).unlink(missing_ok=True)
        return None

    def _see_off(self, name: str, record: Record) -> None:
        now = time.time()
        if not record.told:
            if self._upstreams is None or now - record.leaving >= self._linger:
                self._write(name, dataclasses.replace(record, told=now))
                proc.send(record.pid, record.started, signal.SIGTERM)
        elif now - record.told >= self._grace:
            proc.send(record.pid, record.started, signal.SIGKILL)

    def _show(self, records: Sequence[Record]) -> None:
        if self._upstreams is not None:
            ports = sorted(record.port for record in records if record.port)
            self._upstreams.show([f"{HOST}:{port}" for port in ports if _answers(port)])

    def _spawn(self, name: str) -> int:
        port = _free_port() if any(PORT in word for word in self._command) else 0
        command = [word.replace(PORT, str(port)) for word in self._command]
        starter = [sys.executable, "-m", "essaim.scaling.start", str(self._file(name)), str(port)]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self._log(name)), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        try:
            # A session of its own: Ctrl-C here is not meant for it.
            return os.posix_spawn(
                sys.executable,
                [*starter, *command],
                dict(self._environ),
                file_actions=files,
                setsid=True,
            )
        except OSError as error:
            raise TransientError(f"cannot start a replica: {error.strerror}") from error

    def _await(self, name: str, pid: int) -> None:
        deadline = time.monotonic() + REGISTER_WITHIN
        while not self._file(name).exists():
            if _reap(pid) or time.monotonic() > deadline:
                raise TransientError(
                    f"a replica did not start: {_tail(self._log(name))}",
                    hint=f"see {self._log(name)}",
                )
            time.sleep(PAUSE)

    def _records(self) -> dict[str, Record]:
        found = {}
        for file in sorted(self._folder.glob("*.json")):
            # It may go, or be written by a newer Essaim, while this looks.
            with contextlib.suppress(OSError, ValueError, TypeError):
                found[file.stem] = Record(**json.loads(file.read_text()))
        return found

    def _write(self, name: str, record: Record) -> None:
        made = self._folder / f"{name}.new"
        made.write_text(json.dumps(dataclasses.asdict(record)))
        made.replace(self._file(name))

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def _reap(pid: int) -> bool:
    """Take the exit code of a child that has ended; whether there was one."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False  # started by an earlier process


def _free_port() -> int:
    """One nobody listens on, below those the kernel gives to outgoing connections.

    One of these might have it before the replica listens there.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = secrets.choice(range(lowest // 2, lowest))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def _tail(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip().rpartition("\n")[2] or "it said nothing"
    except OSError:
        return "it said nothing"
