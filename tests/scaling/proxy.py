"""A real Caddy on free ports."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import httpx

from api.rig import wait_for
from databases import find
from essaim_lab.computer import free_port

CADDYFILE = """\
{
	admin 127.0.0.1:%(admin)d
	auto_https off
}
http://127.0.0.1:%(port)d {
	reverse_proxy 127.0.0.1:9 {
		lb_try_duration 5s
	}
}
"""


class Proxy:
    def __init__(self, folder: Path) -> None:
        self.port, self.folder, admin = free_port(), folder, free_port()
        self.admin = f"http://127.0.0.1:{admin}"
        (folder / "Caddyfile").write_text(CADDYFILE % {"admin": admin, "port": self.port})

    @contextlib.contextmanager
    def running(self):
        words = [find("caddy", "caddy"), "run", "--config", "Caddyfile"]
        home = {"HOME": str(self.folder), "PATH": os.environ["PATH"]}
        with (self.folder / "caddy.log").open("ab") as log:
            process = subprocess.Popen(words, cwd=self.folder, env=home, stdout=log, stderr=log)
        try:
            wait_for(lambda: process.poll() is not None or answers(f"{self.admin}/config/"))
            assert process.poll() is None, (self.folder / "caddy.log").read_text()
            yield
        finally:
            process.terminate()
            process.wait(60)

    def upstreams(self) -> int:
        text = httpx.get(f"{self.admin}/config/", timeout=60).text
        return text.count('"dial"') - text.count('"127.0.0.1:9"')


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=60).status_code == 200
    except httpx.TransportError:
        return False
