"""The simulator in a process of its own: what it costs is not counted with what is measured."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, Self

from essaim_lab.simulators.proxmox.__main__ import arguments, simulator
from essaim_lab.simulators.proxmox.bound import lower_bound
from essaim_lab.simulators.proxmox.settings import Settings

PATIENCE = 120.0


class SimulatorProcess:
    """`with SimulatorProcess(nodes=5, speed=20) as sim:` is a Simulator in another process.

    Takes the options of `python -m essaim_lab.simulators.proxmox`, with underscores.  Gives `url`,
    `ca`, `token`, `secret`, `plane_token`, `plane_secret`; faults and counts go over HTTPS.
    """

    def __init__(self, **options: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="proxmox-simulator-")
        self._words = [f"--folder={self._folder.name}"]
        self._words += [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        self.settings: Settings = simulator(arguments(self._words)).settings
        self._child: subprocess.Popen[str]
        self.url = self.token = self.secret = self.plane_token = self.plane_secret = ""
        self.ca = Path()

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "essaim_lab.simulators.proxmox", "--attached"]
        self._child = subprocess.Popen(
            [*command, *self._words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        line = self._child.stdout.readline() if self._child.stdout else ""
        if not line:
            self.__exit__()
            raise RuntimeError("the simulator did not start")
        told = json.loads(line)
        self.url, self.ca = told["url"], Path(told["ca"])
        self.token, self.secret = told["root"], Path(told["root_secret"]).read_text("utf-8")
        self.plane_token, self.plane_secret = told["token"], Path(told["secret"]).read_text("utf-8")
        self._lab = Path(told["lab_secret"]).read_text("utf-8")
        self._context = ssl.create_default_context(cafile=told["ca"])
        return self

    def __exit__(self, *_error: object) -> None:
        self._child.terminate()
        with self._child:
            self._child.wait(PATIENCE)
        self._folder.cleanup()

    def _ask(self, method: str, path: str, **said: Any) -> Any:
        request = urllib.request.Request(  # noqa: S310 - our own address
            f"{self.url}/lab/{path}",
            method=method,
            data=json.dumps(said).encode() if said else None,
            headers={"Authorization": f"Bearer {self._lab}"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE, context=self._context) as answer:  # noqa: S310 - our own address
            return json.load(answer)["data"]

    def fault(self, name: str, /, **how: Any) -> None:
        """Let something go wrong."""
        self._ask("POST", "faults", fault=name, **how)

    def heal(self) -> None:
        """Let nothing go wrong any more."""
        self._ask("DELETE", "faults")

    def counts(self) -> dict[str, Any]:
        """What was asked, refused and done; see `Tally`."""
        found: dict[str, Any] = self._ask("GET", "counts")
        return found

    def cpu(self) -> float:
        """Seconds of processor time it has used."""
        words = Path(f"/proc/{self._child.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def lower_bound(self, machines: int, **how: Any) -> float:
        """The fewest simulated seconds in which so many can be cloned and started."""
        return lower_bound(self.settings, machines, **how)
