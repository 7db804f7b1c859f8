"""Runs real servers for tests: in the foreground, on free ports, in folders that go away."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from databases import PATIENCE


@contextlib.contextmanager
def folder(user: str = "root") -> Iterator[Path]:
    """A folder that a server's user can reach."""
    with tempfile.TemporaryDirectory(prefix="essaim-servers-") as name:
        os.chmod(name, 0o755)
        if user != "root":
            shutil.chown(name, user, user)
        yield Path(name)


def wait(for_what: str, ready: Callable[[], object], process: subprocess.Popen | None = None):
    """Return what `ready` gives once that is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := ready()):
        if (process and process.poll() is not None) or time.monotonic() > deadline:
            pytest.fail(f"waited in vain for {for_what}")
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def refusing_port() -> Iterator[int]:
    """A port nobody listens on; held, so that nobody can begin to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def _group(number: int) -> bool:
    """Whether any process of a group is left."""
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def running(
    command: Sequence[object],
    place: Path,
    ready: Callable[[], object],
    env: Mapping[str, str] | None = None,
    **options: object,
) -> Iterator[subprocess.Popen]:
    """Run a server until the end of the block; ready when it says so."""
    log = place / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=output,
            stderr=output,
            cwd=place,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            **{"stdin": subprocess.DEVNULL, **options},
        )
    try:
        try:
            wait(f"{command[0]} to start", ready, process)
        except pytest.fail.Exception:
            pytest.fail(f"{command[0]} did not start:\n{log.read_text(errors='replace')[-4000:]}")
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        # Those it has started go with it, whether it minds or not.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait("the last of its processes", lambda: not _group(process.pid))
        if process.stdin:
            process.stdin.close()
