"""`essaim students apply` on a simulated cluster, watched from outside."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from essaim_lab.bench import processes
from essaim_lab.bench.school_cluster import POOL, STORAGE, TEMPLATE, Cluster, Like, Outcome, cluster
from essaim_lab.bench.timing import Measured, timed
from essaim_lab.simulators.proxmox.clock import WallClock

if TYPE_CHECKING:
    from collections.abc import Iterator

ROSTER = "promo"
#: Seconds between two looks at the command.
LOOK = 0.05
PATIENCE = 3600.0
COMMAND = f"essaim students apply {ROSTER}.csv"
_SITE = """\
driver: proxmox
url: {url}
token: {token}
secret: {{file: {secret}}}
ca: {ca}
ids: 50000-59999
pool: {pool}
storage: {storage}
bridge: vmbr0
"""
_SETTINGS = f"""\
name: {ROSTER}
site: pve
image: gui
size: {{cores: 2, memory: 2048}}
network: {{cidr: 10.60.0.0/20}}
"""
_IMAGE = f"builder: template\ntemplate: {TEMPLATE}\nkind: lxc\nclone: full\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What one `students apply` cost, and what became of it."""

    done: Measured
    outcome: Outcome
    threads: int  #: the most at any moment
    memory: int  #: bytes, the most at any moment
    load: float  #: of this computer, the most at any moment: others on it slow the command down


@dataclass
class _Seen:
    """What was seen of a command under way."""

    began: float = 0.0  #: when it asked the cluster first, in simulated seconds
    threads: int = 0
    memory: int = 0
    load: float = 0.0


class School:
    """A control plane with fresh state, and a roster for a cluster."""

    def __init__(self, place: Path, its: Cluster, clock: WallClock, students: int) -> None:
        self._place = place
        self._cluster = its
        self._clock = clock
        self.students = students
        kept = {k: v for k, v in os.environ.items() if k != "ESSAIM_DATABASE"}
        self._environ = {**kept, "ESSAIM_HOME": str(place / "home")}
        self._write()

    def _write(self) -> None:
        sim, lab = self._cluster.sim, self._place / "lab"
        for folder in ("site", "images"):
            (lab / folder).mkdir(parents=True)
        secret = self._place / "token"
        secret.touch(mode=0o600)
        secret.write_text(sim.plane_secret)
        site = {"url": sim.url, "token": sim.plane_token, "secret": secret, "ca": sim.ca}
        (lab / "essaim.yaml").write_text("{}\n")
        (lab / "site" / "pve.yaml").write_text(_SITE.format(**site, pool=POOL, storage=STORAGE))
        (lab / "images" / "gui.yaml").write_text(_IMAGE)
        (lab / f"{ROSTER}.yaml").write_text(_SETTINGS)
        rows = [f"s{n:03},Student {n:03},a" for n in range(1, self.students + 1)]
        (lab / f"{ROSTER}.csv").write_text("\n".join(["login,name,group", *rows, ""]))

    @property
    def bound(self) -> float:
        """The fewest simulated seconds in which all these machines can be made."""
        return self._cluster.bound(self.students)

    def apply(self) -> Applied:
        """Run the command to its end; CannotRunError with its last words when it fails."""
        # As the launcher starts it, without its checks.
        python = [sys.executable, "-P", "-c", "from essaim.cli import main; main()"]
        words = [*python, "students", "apply", f"{ROSTER}.csv", "--yes", "--json"]
        with self._watching() as seen:
            done = timed(words, environ=self._environ, cwd=self._place / "lab", within=PATIENCE)
        return Applied(
            done=done.require(),
            outcome=self._cluster.outcome(self.students, seen.began),
            threads=seen.threads,
            memory=seen.memory,
            load=seen.load,
        )

    @contextmanager
    def _watching(self) -> Iterator[_Seen]:
        """Look at the process this one starts meanwhile, and at the cluster."""
        seen, over = _Seen(), threading.Event()
        before = processes.children_of(os.getpid())
        clock = self._clock

        def watch() -> None:
            ours: set[int] = set()
            while not over.wait(LOOK):
                if not seen.began and self._cluster.asked():
                    seen.began = clock.now()
                ours = ours or processes.children_of(os.getpid()) - before
                seen.threads = max(seen.threads, sum(map(processes.threads, ours)))
                seen.memory = max(seen.memory, sum(map(processes.resident, ours)))
                seen.load = max(seen.load, os.getloadavg()[0])

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            over.set()
            thread.join()


@contextmanager
def school(like: Like, students: int, speed: float) -> Iterator[School]:
    """Give a school whose cluster's time goes by so many times faster than the wall's."""
    place = Path(tempfile.mkdtemp(prefix="essaim-bench-school-"))
    clock = WallClock(speed)
    try:
        with cluster(like, clock) as its:
            yield School(place, its, clock, students)
    finally:
        shutil.rmtree(place)
