"""A place to try the libvirt driver in: a real server, and what is left there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from drivers.lab import Lab
from essaim.drivers.libvirt.driver import Libvirt
from essaim.model.errors import TransientError
from essaim.model.names import MachineName
from essaim.model.stacks import Site
from essaim.store.database import open_database
from essaim.store.migrate import migrate
from essaim.store.reservations import Reservations
from hypervisor import Server

#: Seconds an emulated machine may take on a busy computer.
PATIENCE = 600.0


def wait_for(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"still not so: {what}"
        time.sleep(0.1)


def blank_disk(path: Path, size: str = "16M") -> Path:
    """A disk nothing boots from: enough to try everything but the guest."""
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(path), size], check=True)
    return path


class Held:
    """Reservations in memory, for somebody who may not read our database."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, str], int] = {}

    def reserve(self, site: str, kind: str, holder: str, candidates, *, anew: bool = False) -> int:
        if anew or (kind, holder) not in self.numbers:
            taken = {number for (its, _), number in self.numbers.items() if its == kind}
            self.numbers[kind, holder] = next(one for one in candidates if one not in taken)
        return self.numbers[kind, holder]

    def release(self, site: str, holder: str) -> None:
        for key in [key for key in self.numbers if key[1] == holder]:
            del self.numbers[key]


class VirtLab(Lab):
    """One try on a server.  Each process has a driver and a database connection of its own."""

    def __init__(self, place: Path, server: Server, disk: Path, **settings: str) -> None:
        self.place = place
        self.server = server
        self.disk = disk
        self.state = place / "s"
        self.plane = place.name  # one for each try: ports, which all share, are derived from it
        self.settings = {
            "uri": server.uri,
            "host_key": server.host_key,
            "key": str(server.key),
            "accelerator": "tcg",
            **settings,
        }
        self.key = self.new_key("user")
        self._keys: dict[str, Path] = {}
        self._stacks: list[str] = []
        self._drivers: dict[int, Libvirt] = {}
        self._databases = []
        with self.database() as database:
            migrate(database)

    @contextmanager
    def database(self) -> Iterator:
        database = open_database(f"sqlite:///{self.place}/essaim.db")
        try:
            yield database
        finally:
            database.close()

    def new_driver(self, plane: str = "", **settings: object) -> Libvirt:
        database = open_database(f"sqlite:///{self.place}/essaim.db")
        self._databases.append(database)
        site = Site(name="rhodey", driver="libvirt", settings={**self.settings, **settings})
        return Libvirt(
            site, lambda _image: self.disk, Reservations(database), plane or self.plane, self.state
        )

    @property
    def driver(self) -> Libvirt:  # type: ignore[override]
        pid = os.getpid()
        if pid not in self._drivers:
            self._drivers[pid] = self.new_driver()
        return self._drivers[pid]

    def held(self) -> list[tuple[str, str]]:
        """What is reserved, by kind and holder."""
        with self.database() as database:
            kinds = ("port", "mac", "group", *(f"address.{stack}" for stack in self._stacks))
            return [
                (kind, holder)
                for kind in kinds
                for holder in Reservations(database).held("rhodey", kind).values()
            ]

    def await_ssh(self, name: MachineName) -> None:
        wait_for(lambda: self.banner(name), f"{name} answers")

    def banner(self, name: MachineName) -> bytes:
        try:
            with self.driver.dial(name, 22) as conn:
                conn.settimeout(10)
                return conn.recv(64)
        except (TransientError, OSError):
            return b""

    def run(self, name: MachineName, command: str) -> str:
        # What a machine has written is on its disk only when it says so: it may lose its power.
        return super().run(name, f"{{ {command}\n}} && sync")

    def processes(self, *words: str) -> list[int]:
        """The account's emulators whose command line holds all the words."""
        every = self.server.processes().items()
        return [
            pid for pid, line in every if "qemu-system" in line and all(w in line for w in words)
        ]

    def first_processes(self, stack: str) -> list[int]:
        return self.processes(f"guest={stack}.")

    def crash(self, stack: str) -> None:
        """What a power cut does to the server's machines and its libvirt."""
        self.end("qemu-system", "libvirtd", "virtlogd")
        # A libvirtd that starts believes for a moment that what ran before still does.
        wait_for(lambda: "on" not in self.server.domains().values(), "libvirt has noticed")

    def end(self, *programs: str) -> None:
        """End processes of the account, the hard way."""
        for pid, line in self.server.processes().items():
            if any(program in line.split(" ")[0] for program in programs):
                os.kill(pid, signal.SIGKILL)
                wait_for(lambda pid=pid: pid not in self.server.processes(), f"{line} has ended")

    def volumes(self) -> set[str]:
        return {
            volume
            for volumes in self.server.volumes().values()
            for volume in volumes
            if not volume.startswith("base-")
        }

    def traces(self) -> dict[str, list[str]]:
        return {
            "processes": [str(pid) for pid in self.processes()],
            "domains": sorted(self.server.domains()),
            "volumes": sorted(self.volumes()),
            "reservations": [str(held) for held in self.held()],
        }

    def nothing_left(self) -> None:
        assert {what: left for what, left in self.traces().items() if left} == {}

    def close(self) -> None:
        for stack in self._stacks:
            self.driver.close_network(stack)
        for driver in self._drivers.values():
            driver.close()
        for database in self._databases:
            database.close()


@contextmanager
def virt_lab(server: Server, disk: Path, **settings: str) -> Iterator[VirtLab]:
    """A lab that is taken down, even when the try fails."""
    place = Path(tempfile.mkdtemp(prefix="virt-"))
    made = VirtLab(place, server, disk, **settings)
    try:
        yield made
    finally:
        try:
            made.close()
        finally:
            shutil.rmtree(place)
