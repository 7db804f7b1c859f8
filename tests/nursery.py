"""Commands without the second it takes Python to import what they need.

One process without threads has imported everything and forks one for each command, which has its
own environment, folder and files, and ends as a process does.  What a command costs from the very
start is measured elsewhere, and whoever is to be killed, or looked at while it runs, is started
plainly.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

#: What commands import when they are used.  None of them starts a thread.
IMPORTED = (
    "essaim.cli.app",
    "essaim.cli.requests",
    "essaim.bootstrap",
    "essaim.config.compose",
    "essaim.config.build",
    "essaim.drivers.sandbox.driver",
    "essaim.engine.execute",
    "essaim.images.cache",
    "essaim.remote.ssh",
    "essaim.store.journal",
    "essaim.usecases.stacks",
    "essaim.workflows.table",
    "asyncssh",
    "httpx",
    "hydra",
    "jinja2",
    "omegaconf",
    "pydantic",
    "sqlalchemy",
)
_FILES = 3
_LARGEST = 1 << 20


def run(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout: float,
    stdin: str = "",
    mixed: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `essaim WORDS` to its end; with `mixed`, stdout holds what stderr would."""
    with contextlib.ExitStack() as files:
        given, out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(_FILES))
        given.write(stdin.encode())
        given.seek(0)
        asked = {"words": list(words), "env": dict(env), "cwd": str(cwd)}
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.settimeout(timeout)
            line.connect(_nursery())
            handles = array.array(
                "i", [given.fileno(), out.fileno(), (out if mixed else err).fileno()]
            )
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)
            line.sendmsg([json.dumps(asked).encode()], [rights])
            try:
                code = int(line.recv(64))
            except TimeoutError as error:  # it is ended by our hanging up
                raise subprocess.TimeoutExpired(list(words), timeout) from error
        said = [_text(file) for file in (out, err)]
    return subprocess.CompletedProcess(list(words), code, *said)


def _text(file) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


@functools.cache
def _nursery() -> str:
    """Where it listens; started when first asked for, ended with this process."""
    folder = tempfile.mkdtemp(prefix="essaim-nursery-")
    address = f"{folder}/socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        # An environment as people have it: some libraries look at theirs as they are imported.
        env = {"HOME": folder, "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            env=env,
        )
    atexit.register(_end, process, folder)
    return address


def _end(process: subprocess.Popen[bytes], folder: str) -> None:
    process.kill()
    process.wait()
    Path(folder, "socket").unlink()
    Path(folder).rmdir()


class _Nursery:
    """What listens and forks."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._watch = selectors.DefaultSelector()
        self._watch.register(listener, selectors.EVENT_READ)
        self._lines: dict[int, tuple[socket.socket, int]] = {}  #: by handle of the child

    def serve(self) -> list[str]:
        """Fork for whoever asks; returns in the child alone, with its words."""
        while True:
            for key, _ in self._watch.select():
                if key.fileobj is self._listener:
                    words = self._begin()
                    if words is not None:
                        return words
                elif key.data is None:
                    self._ended(key.fd)
                else:
                    self._hung_up(key.data)

    def _begin(self) -> list[str] | None:
        line, _ = self._listener.accept()
        text, handles, _, _ = socket.recv_fds(line, _LARGEST, _FILES)
        asked = json.loads(text)
        pid = os.fork()
        if pid == 0:
            self._become(line, handles, asked)
            return asked["words"]
        for handle in handles:
            os.close(handle)
        ends = os.pidfd_open(pid)
        self._lines[ends] = (line, pid)
        self._watch.register(ends, selectors.EVENT_READ)
        self._watch.register(line, selectors.EVENT_READ, ends)
        return None

    def _become(self, line: socket.socket, handles: list[int], asked: dict) -> None:
        """Be as if started by whoever asked."""
        self._watch.close()
        self._listener.close()
        line.close()
        for ends, (other, _) in self._lines.items():
            os.close(ends)
            other.close()
        for number, handle in enumerate(handles):
            os.dup2(handle, number)
            os.close(handle)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])

    def _ended(self, ends: int) -> None:
        if ends not in self._lines:  # whoever hung up among the same events has ended it
            return
        line, pid = self._lines.pop(ends)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._watch.unregister(ends)
        self._watch.unregister(line)
        os.close(ends)
        with contextlib.suppress(OSError):  # they did not want to wait
            line.send(str(code).encode())
        line.close()

    def _hung_up(self, ends: int) -> None:
        if ends in self._lines:  # else its end was among the same events
            os.kill(self._lines[ends][1], signal.SIGKILL)
            self._ended(ends)


def _main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    words = _Nursery(socket.socket(fileno=int(sys.argv[1]))).serve()
    sys.argv = ["essaim", *words]
    from essaim.cli import main

    main()


if __name__ == "__main__":
    _main()
