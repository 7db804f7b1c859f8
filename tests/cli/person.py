"""Somebody with a home of their own who types commands."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import nursery
from api.rig import PASSWORD

COMMAND = [sys.executable, "-P", "-c", "from essaim.cli import main; main()"]
PATIENCE = 120.0


class Person:
    """Types `essaim` commands in a home where nobody was before."""

    def __init__(
        self, home: Path, server: str = "", *, lang: str = "C.UTF-8", at: Sequence[str] = ()
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.at = at  #: words that bring a command to where they are
        self.home = home
        self.server = server
        self.env = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "LANG": lang,
            "ESSAIM_PASSWORD": PASSWORD,
        }

    @property
    def client(self) -> Path:
        return self.home / ".local/state/essaim/client"

    @property
    def session(self) -> dict:
        return json.loads((self.client / "session.json").read_text())

    def types(self, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        own = {**self.env, **env}
        if not self.at:
            return nursery.run(words, env=own, cwd=Path.cwd(), timeout=PATIENCE, stdin=stdin)
        return subprocess.run(
            [*self.at, *COMMAND, *words],
            env=own,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def begins(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.at, *COMMAND, *words],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def does(self, *words: str, code: int = 0, **env: str) -> str:
        """What a command that must end with this code printed."""
        done = self.types(*words, **env)
        assert done.returncode == code, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr

    def gets(self, *words: str, **env: str):
        """What a command says as JSON."""
        return json.loads(self.does(*words, "--json", **env))

    def log_in(self, name: str) -> None:
        self.does("login", name, "--server", self.server)


@contextlib.contextmanager
def way(server: str, loses: Callable[[bytes], bool]) -> Iterator[str]:
    """A way to a server on which some requests arrive but their answers are lost."""
    url = urlsplit(server)
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()
    threads = []

    def carry(near: socket.socket) -> None:
        with near, socket.create_connection((url.hostname, url.port)) as far:
            near.settimeout(PATIENCE)
            while request := _whole(near):
                far.sendall(request)
                lost = loses(request)
                answer = _whole(far)
                if lost:
                    return
                near.sendall(answer)

    def accept() -> None:
        while True:
            near, _ = listener.accept()
            if ended.is_set():
                near.close()
                return
            threads.append(threading.Thread(target=carry, args=(near,)))
            threads[-1].start()

    door = threading.Thread(target=accept)
    door.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ended.set()
        socket.create_connection(listener.getsockname()).close()
        door.join(PATIENCE)
        for thread in threads:
            thread.join(PATIENCE)
        listener.close()


def _whole(peer: socket.socket) -> bytes:
    """One HTTP message with the length it says."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = peer.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        ),
        0,
    )
    while len(body) < length:
        body += peer.recv(65536)
    return head + b"\r\n\r\n" + body
