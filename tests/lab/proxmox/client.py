"""A real client of the simulator: proxmoxer over HTTPS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from proxmoxer import ProxmoxAPI

from essaim_lab.simulators.proxmox import Simulator


class Client:
    """What tests do over HTTPS: requests by proxmoxer, and waiting for tasks."""

    def __init__(self, sim: Simulator, token: str = "", secret: str = "") -> None:
        user, _, name = (token or sim.token).partition("!")
        self.sim = sim
        self.api = ProxmoxAPI(
            "127.0.0.1",
            port=sim.port,
            user=user,
            token_name=name,
            token_value=secret or sim.secret,
            verify_ssl=str(sim.ca),
            timeout=60,
        )

    @classmethod
    def of(cls, told: dict) -> Client:
        """A client of what `essaim lab proxmox --json` started."""
        port, secret = int(told["url"].rpartition(":")[2]), Path(told["secret"]).read_text()
        return cls(SimpleNamespace(port=port, ca=told["ca"]), told["token"], secret)

    def node(self, name: str = "pve1"):
        return self.api.nodes(name)

    def status(self, upid: str) -> dict:
        return self.node(upid.split(":")[1]).tasks(upid).status.get()

    def done(self, upid: str) -> str:
        """Let time go by until it has ended; gives how."""
        while True:
            found = self.status(upid)
            if found["status"] == "stopped":
                return found["exitstatus"]
            assert self.sim.clock.jump(), "nothing will ever happen"

    def clone(self, newid: int, kind: str = "lxc", source: int = 0, node: str = "pve1", **more):
        base = source or {"lxc": 9000, "qemu": 9500}[kind]
        return getattr(self.node(node), kind)(base).clone.post(newid=newid, **more)

    def made(self, newid: int, kind: str = "lxc", **more) -> int:
        assert self.done(self.clone(newid, kind, **more)) == "OK"
        return newid


def start_lab(home: Path, *words: str) -> tuple[subprocess.Popen, dict]:
    """`essaim lab proxmox`, and what it says."""
    program = "import sys; from essaim.cli import main; sys.exit(main())"
    child = subprocess.Popen(
        [sys.executable, "-c", program, "lab", "proxmox", "--port", "0", "--json", *words],
        env={**os.environ, "ESSAIM_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    )
    return child, json.loads(child.stdout.readline())


def stop_lab(child: subprocess.Popen) -> None:
    """Ctrl-C."""
    child.send_signal(signal.SIGINT)
    with child:
        assert child.wait(120) == 0
