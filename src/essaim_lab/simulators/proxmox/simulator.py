"""The simulator as a whole: a cluster behind HTTPS, with a token to begin with."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from essaim_lab.simulators.proxmox import (  # noqa: F401 - each registers what it answers
    clones,
    drives,
    guest_agent,
    guests,
    listings,
    network,
    people,
    pools,
    power,
    snapshots,
    worklog,
)
from essaim_lab.simulators.proxmox.access import ROOT, Token, User
from essaim_lab.simulators.proxmox.bound import lower_bound
from essaim_lab.simulators.proxmox.certificates import make
from essaim_lab.simulators.proxmox.clock import Clock, WallClock
from essaim_lab.simulators.proxmox.cluster import OK, Answer, Cluster, Request
from essaim_lab.simulators.proxmox.errors import PveError
from essaim_lab.simulators.proxmox.narrow_token import grant_narrow
from essaim_lab.simulators.proxmox.settings import NodeSettings, Settings, StorageSettings, usual
from essaim_lab.simulators.proxmox.state import Pool
from essaim_lab.simulators.proxmox.web import Server

#: What a wide token may do on every path; those that a version does not have are left out.
PLANE = """VM.Allocate VM.Audit VM.Clone VM.Config.CDROM VM.Config.CPU VM.Config.Cloudinit
    VM.Config.Disk VM.Config.HWType VM.Config.Memory VM.Config.Network VM.Config.Options VM.Console
    VM.GuestAgent.Audit VM.GuestAgent.Unrestricted VM.Monitor VM.PowerMgmt VM.Snapshot
    VM.Snapshot.Rollback Datastore.AllocateSpace Datastore.Audit Pool.Audit Pool.Allocate SDN.Use
    Sys.Audit"""


class Simulator:
    """A Proxmox VE that is not there.

    `with Simulator(nodes=3, templates=2, seed=0, speed=20.0) as sim:` listens on `sim.url`;
    `sim.ca` is the authority to trust, `sim.token` and `sim.secret` let in as root,
    `sim.plane_token` and `sim.plane_secret` with a control plane's rights.  `sim.fault(…)` lets
    things go wrong; `sim.cluster` is the state.  There is a pool `students`.  With `doors`,
    `sim.urls` has one address for each node, and a node that is lost does not answer at its own.
    """

    def __init__(
        self,
        *,
        nodes: int = 3,
        templates: int = 1,
        copies: int = 1,
        storages: Sequence[StorageSettings] = (),
        node: NodeSettings | None = None,
        gib: int = 8,
        seed: int = 0,
        speed: float = 1.0,
        clock: Clock | None = None,
        port: int = 0,
        host: str = "127.0.0.1",
        folder: Path | None = None,
        stats_seconds: float = 10.0,
        slow_listing: float = 0.0,
        doors: bool = False,
        strict: bool = False,
        version: int = 8,
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings or usual(
            nodes=nodes,
            templates=templates,
            copies=copies,
            storages=storages,
            node=node,
            gib=gib,
            seed=seed,
            stats_seconds=stats_seconds,
            slow_listing=slow_listing,
            version=version,
        )
        self.strict = strict  #: whether the token of the control plane has narrow rights only
        self.clock: Clock = clock or WallClock(speed)
        self.cluster = Cluster(self.settings, self.clock)
        self.token, self.secret = f"{ROOT}!lab", str(uuid.uuid4())
        self.plane_token, self.plane_secret = "essaim@pve!plane", str(uuid.uuid4())
        self.password = secrets.token_urlsafe(12)  #: of root@pam
        self.admin_secret = secrets.token_urlsafe(24)  #: for /lab/…
        self._populate()
        self._own = folder is None
        self._host, self._port = host, port
        self._doors = doors
        self.urls: list[str] = []
        self._folder = folder
        self._server: Server
        self.port = 0
        self.ca = Path()

    def _populate(self) -> None:
        access = self.cluster.access
        access.users[ROOT].password = self.password
        access.users[ROOT].tokens["lab"] = Token(self.secret, privsep=False)
        access.roles["EssaimPlane"] = access.all_privileges & set(PLANE.split())
        access.users["essaim@pve"] = User(tokens={"plane": Token(self.plane_secret, privsep=False)})
        self.cluster.pools["students"] = Pool("machines of students")
        if self.strict:
            grant_narrow(self.cluster, "essaim@pve", "students")
        else:
            self.cluster.grant("/", "essaim@pve", "EssaimPlane")

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"https://{self._host}:{self.port}"

    def open(self, *, eager: bool = False) -> None:
        """Begin to answer; with `eager` things happen in time even when nobody asks."""
        folder = self._folder or Path(tempfile.mkdtemp(prefix="proxmox-simulator-"))
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.ca, context = make(folder, ["localhost", *self.cluster.nodes])
        self._server = Server(self.cluster, context, self.admin_secret)
        self._server.eager = eager
        self.port = self._server.open(self._host, self._port)
        self.urls = [self.url]
        if self._doors:
            ports = [self._server.open(self._host, 0, node) for node in self.cluster.nodes]
            self.urls = [f"https://{self._host}:{port}" for port in ports]
            self.cluster.doors.append(self._server.shut)

    def close(self) -> None:
        """Stop answering; what was written for it is removed."""
        if hasattr(self, "_server"):
            self._server.close()
        if self._own and self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def ask(self, method: str, path: str, /, **said: Any) -> Any:
        """Ask as root, without HTTPS: gives the data, or raises PveError.

        A dash in a parameter's name is written as two underscores.
        """
        found: list[Answer] = []
        there = threading.Event()
        request = Request(
            method,
            path,
            {key.replace("__", "-"): value for key, value in said.items()},
            token=f"{self.token}={self.secret}",
        )

        def done(answer: Answer) -> None:
            if waits:
                self.clock.unblocked()
            found.append(answer)
            there.set()

        waits: list[bool] = []
        with self.clock.lock:
            self.cluster.submit(request, done)
            if not found:
                waits.append(True)
                self.clock.blocked()
        while not there.wait(self.clock.wait()):
            with self.clock.lock:
                self.clock.settle()
        if found[0].status != OK:
            raise PveError(found[0].message, found[0].status, found[0].errors)
        return found[0].data

    def fault(self, name: str, /, **how: Any) -> None:
        """Let something go wrong: errors, locks, deaths, quorum, node, foreign, snatch."""
        self.cluster.faults.set(name, **how)
        self._settle()

    def _settle(self) -> None:
        if hasattr(self, "_server"):
            self._server.settle()

    def heal(self) -> None:
        """Let nothing go wrong any more; nodes come back."""
        self.cluster.faults.heal()
        self._settle()

    def lower_bound(self, machines: int, **how: Any) -> float:
        """The fewest simulated seconds in which so many can be cloned and started."""
        return lower_bound(self.settings, machines, **how)
