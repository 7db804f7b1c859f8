"""Reach ports as a server does; run as a program, hand OpenSSH such a connection.

All that goes to one server goes through one OpenSSH *master*, a process in the background that any
number of threads and processes share and that ends by itself when nobody has used it for a while.
A port is forwarded once, to a socket in a folder that only its owner may enter; to dial it then
costs no more than to open that socket.  Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CONFIG, MASTER, LOCK = "config", "master", "lock"
#: How OpenSSH, which is run in a server's folder, names that folder: a socket's address holds 107
#: bytes, and a path may be longer.
HERE = "/proc/self/cwd"
#: Seconds a master may take from nothing to a login.
LOGIN_WITHIN = 30.0
_ASK_WITHIN = 15.0
_BANNER_WITHIN = 60.0
#: Seconds for which a machine may hang up: its SSH server may be starting, or have too many guests.
_HANGS_UP_FOR = 10.0
#: Seconds after which another connection is tried beside a silent one, and how many there are at
#: most: SSH servers hang up on whoever has too many that have not logged in, some on the sixth.
_NEXT_AFTER, _MOST_AT_ONCE = 1.0, 3
#: Of the time waited so far that passes at least between two connections.
_SHARE = 0.15
_REFUSED_PAUSE = 0.2
_REFUSED = (ConnectionRefusedError, FileNotFoundError)


class SshError(Exception):
    """OpenSSH did not do what it was asked for; the text is what it said."""


def ssh(folder: Path, *words: str) -> list[str]:
    """An OpenSSH command for the server of a folder; it must be run in that folder."""
    return ["ssh", "-F", str(folder / CONFIG), *words]


def _answers(folder: Path, name: str) -> bool:
    try:
        _connect(folder, name, 5).close()
    except OSError:
        return False
    return True


def _connect(folder: Path, name: str, seconds: float) -> socket.socket:
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            conn.settimeout(seconds)
            conn.connect(f"/proc/self/fd/{fd}/{name}")
            conn.settimeout(None)
        except BaseException:
            conn.close()
            raise
    finally:
        os.close(fd)
    return conn


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def raise_master(folder: Path, host: str) -> None:
    """See to it that a master runs; SshError when the server cannot be logged in to."""
    if _answers(folder, MASTER):
        return
    with _locked(folder):
        if not _answers(folder, MASTER):
            (folder / MASTER).unlink(missing_ok=True)
            _run(folder, LOGIN_WITHIN, ssh(folder, "-M", "-N", "-f", host))


def forward(folder: Path, host: str, address: str, port: int) -> str:
    """Have the master lead a socket to that port, as the server reaches it; the socket's name."""
    name = f"{address}.{port}"
    if _answers(folder, name):
        return name
    raise_master(folder, host)
    with _locked(folder):
        if not _answers(folder, name):
            # What is left of an earlier master would be in the way.
            (folder / name).unlink(missing_ok=True)
            _ask(folder, host, "forward", f"{HERE}/{name}:{address}:{port}")
    return name


def forget(folder: Path, host: str, address: str, port: int) -> None:
    """Take a port's forwarding back.  Nothing if there is none."""
    name = f"{address}.{port}"
    if not (folder / name).exists():
        return
    with _locked(folder):
        with suppress(SshError):
            _ask(folder, host, "cancel", f"{HERE}/{name}:{address}:{port}")
        (folder / name).unlink(missing_ok=True)


def _ask(folder: Path, host: str, what: str, forwarding: str) -> None:
    # Without the folder's configuration: only this port is meant, not those a user's file adds.
    way = ["ssh", "-F", "none", "-o", f"ControlPath={HERE}/{MASTER}", "-O", what]
    _run(folder, _ASK_WITHIN, [*way, "-L", forwarding, host])


def _run(folder: Path, seconds: float, command: list[str]) -> None:
    # A file, because a master that has gone into the background would hold a pipe open.
    with tempfile.TemporaryFile() as said:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                timeout=seconds,
                cwd=folder,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SshError(f"no answer in {seconds:.0f} s") from error
        if done.returncode:
            said.seek(0)
            text = said.read().decode(errors="replace").strip()
            raise SshError(text or f"ssh ended with {done.returncode}")


def dial(
    folder: Path | None, host: str, address: str, port: int, seconds: float = 15.0
) -> socket.socket:
    """Connect to a port as the server reaches it; without a folder the server is this computer.

    OSError or SshError when that cannot be.  Through a master a port where nobody listens shows
    itself only as a connection that ends at once.
    """
    if folder is None:
        conn = socket.create_connection((address, port), timeout=seconds)
        conn.settimeout(None)
        return conn
    try:
        return _connect(folder, f"{address}.{port}", seconds)
    except _REFUSED:
        return _connect(folder, forward(folder, host, address, port), seconds)


def first_to_speak(
    connect: Callable[[], socket.socket], seconds: float, insist: float = _HANGS_UP_FOR
) -> socket.socket:
    """Connect until somebody speaks first, as SSH does; what was said is left where it is.

    A connection that is accepted before a machine has booted reaches it late: the emulator asks
    the machine again after seconds only, and ever more of them.  So others are opened beside it.
    TimeoutError when they are silent for so long, ConnectionResetError when after `insist` seconds
    they still end.
    """
    began = time.monotonic()
    until = began + seconds
    conns: list[socket.socket] = []
    try:
        while (now := time.monotonic()) < until:
            if len(conns) == _MOST_AT_ONCE:
                conns.pop(1).close()  # the oldest stays: it may be at a machine that is only slow
            conns.append(connect())
            # Ever more seldom: one that boots slowly is slow to answer, and each asks more of it.
            pause = max(_NEXT_AFTER, _SHARE * (now - began))
            speaker = _speaker(conns, min(pause, until - now))
            if speaker is not None:
                return speaker
            if not conns:
                if now - began > insist:
                    break
                time.sleep(_REFUSED_PAUSE)
        if not conns:
            raise ConnectionResetError("it hangs up")
        raise TimeoutError(f"silent for {seconds:g} s")
    finally:
        for conn in conns:
            conn.close()


def _speaker(conns: list[socket.socket], seconds: float) -> socket.socket | None:
    """Wait for a connection on which somebody speaks, and take it out; those that end go too."""
    poll = select.poll()  # a large process has descriptors that `select` cannot take
    for conn in conns:
        poll.register(conn, select.POLLIN)
    ready = {fd for fd, _ in poll.poll(seconds * 1000)}
    for conn in [conn for conn in conns if conn.fileno() in ready]:
        conns.remove(conn)
        if _spoke(conn):
            return conn
        conn.close()
    return None


def _spoke(conn: socket.socket) -> bool:
    try:
        return bool(conn.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


def main() -> None:
    """`dial.py FOLDER HOST ADDRESS PORT NAME`: pass a connection to whoever reads standard output.

    An empty FOLDER stands for this computer, an empty ADDRESS for a machine that is not there.
    """
    folder, host, address, port, name = sys.argv[1:]
    if not address:
        sys.exit(f"{name} is off")
    where = Path(folder) if folder else None
    try:
        conn = first_to_speak(lambda: dial(where, host, address, int(port)), _BANNER_WITHIN)
    except (*_REFUSED, ConnectionResetError):
        sys.exit(f"{name} is off")
    except (OSError, SshError) as error:
        sys.exit(f"{name} cannot be reached: {error}")
    with socket.socket(fileno=os.dup(1)) as out:
        socket.send_fds(out, [b"\0"], [conn.fileno()])


if __name__ == "__main__":
    main()
