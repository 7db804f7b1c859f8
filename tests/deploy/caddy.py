"""The Caddy of the deployment, on the loopback, before servers of a test."""

from __future__ import annotations

import os
import ssl
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from databases import find
from deploy.files import DEPLOY
from essaim_lab.computer import free_port

PATIENCE = 120.0
#: Another test may take a port between the moment it is found free and the one it is listened on.
TRIES = 5


class Caddy:
    """One Caddy, with a certificate of its own authority."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder, folder / "caddy.log"
        self._root = folder / "data" / "caddy/pki/authorities/local/root.crt"
        self._port = self._admin = 0
        self._process: subprocess.Popen[bytes] | None = None
        # Its HTTP port is the host's; only what redirects to TLS would need it.
        own = (DEPLOY / "Caddyfile").read_text()
        own = own.replace("{\n", "{\n\tauto_https disable_redirects\n", 1)
        (folder / "Caddyfile").write_text(own)

    def start(self, upstreams: Sequence[str]) -> None:
        """Start it before these; it has been asked something, and has answered, at the end."""
        for _ in range(TRIES):
            self._port, self._admin = free_port(), free_port()
            words, environ = self._command(upstreams, "run")
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(words, env=environ, stdout=log, stderr=log)
            if self._answers_in_time(self._process):
                return
            assert "address already in use" in self._log.read_text(), self._log.read_text()
        raise AssertionError(f"no port was free {TRIES} times: {self._log.read_text()}")

    def reload(self, upstreams: Sequence[str]) -> None:
        """Let it stand before these from now on."""
        words, environ = self._command(upstreams, "reload", "--address", f"localhost:{self._admin}")
        subprocess.run(words, env=environ, check=True, capture_output=True)

    def requests(self, upstream: str) -> int:
        """How many requests it has given to one that are not answered yet."""
        url = f"http://localhost:{self._admin}/reverse_proxy/upstreams"
        found = httpx.get(url, trust_env=False, timeout=60)
        asked = {each["address"]: each["num_requests"] for each in found.json()}
        return int(asked.get(upstream, 0))

    def client(self, path: str = "", *, keep: int | None = None) -> httpx.Client:
        """Make one that asks here, below a path, and keeps this many connections."""
        return httpx.Client(
            base_url=f"https://localhost:{self._port}{path}",
            verify=ssl.create_default_context(cafile=str(self._root)),
            trust_env=False,
            timeout=60,
            limits=httpx.Limits(max_keepalive_connections=keep),
        )

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def _command(self, upstreams: Sequence[str], *words: str) -> tuple[list[str], dict[str, str]]:
        environ = {
            **os.environ,
            "ESSAIM_SITE": f"https://localhost:{self._port}",
            "ESSAIM_UPSTREAMS": " ".join(upstreams),
            "ESSAIM_CADDY_ADMIN": f"localhost:{self._admin}",
            "HOME": str(self._folder),
            "XDG_DATA_HOME": str(self._folder / "data"),
            "XDG_CONFIG_HOME": str(self._folder / "config"),
        }
        told = ["--adapter", "caddyfile", "--config", str(self._folder / "Caddyfile")]
        return [find("caddy", "caddy"), *words, *told], environ

    def _answers_in_time(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for an answer, or for its end."""
        deadline = time.monotonic() + PATIENCE
        last: object = "nothing"
        while process.poll() is None:
            try:
                with self.client() as client:
                    last = client.get("/readyz")
                if last.status_code == 200:
                    return True
            except (httpx.HTTPError, OSError) as error:
                last = error
            assert time.monotonic() < deadline, f"{last!r}\n{self._log.read_text()}"
            time.sleep(0.05)
        return False
