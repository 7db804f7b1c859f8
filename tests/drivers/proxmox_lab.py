"""A place to try the Proxmox driver in: a simulated cluster, and what is left there.

The simulator stands for a cluster: nothing here proves that a machine boots.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from drivers.lab import Lab
from essaim.drivers.proxmox.driver import Proxmox
from essaim.model.errors import NotYetError, TransientError
from essaim.model.machines import Seed
from essaim.model.names import MachineName
from essaim.model.stacks import Image, Machine, Network, Site
from essaim.store.database import open_database
from essaim.store.limits import Limits
from essaim.store.migrate import migrate
from essaim.store.reservations import Reservations

PATIENCE = 120.0
#: Many times faster than a cluster: what is tried is the order of things, not how long they take.
SPEED = 40.0
TEMPLATE = Image(
    name="base", builder="template", digest="d-base", settings={"template": "debian-gui"}
)
IDS = (50000, 50999)
#: The rights that docs/proxmox.md asks for, by path: none on machines outside the pool.
NARROW = {
    "/pool/students": ("PVEVMAdmin", "PVEPoolUser"),
    "/storage": ("PVEDatastoreUser",),
    "/sdn/zones/localnetwork": ("PVESDNUser",),
    "/nodes": ("PVEAuditor",),
}


def until_done(action: Callable[[], object], *, tries: int = 20) -> None:
    """Do as the engine does: come back when told, try again a few times what may pass."""
    deadline = time.monotonic() + PATIENCE
    failures = 0
    while True:
        try:
            action()
            return
        except NotYetError as error:
            pause = error.after
            if time.monotonic() > deadline:
                raise AssertionError(error.what) from error
        except TransientError:
            failures += 1
            if failures == tries:
                raise
            pause = 0.1 * failures
        time.sleep(min(pause, 1.0))


class Patient(Proxmox):
    """The driver as the engine uses it: whoever calls waits until it is done."""

    def create(self, machine: Machine, network: Network, image: Image, seed: Seed) -> None:
        until_done(lambda: super(Patient, self).create(machine, network, image, seed))

    def start(self, name: MachineName) -> None:
        until_done(lambda: super(Patient, self).start(name))

    def stop(self, name: MachineName) -> None:
        until_done(lambda: super(Patient, self).stop(name))

    def destroy(self, name: MachineName) -> None:
        until_done(lambda: super(Patient, self).destroy(name))

    def adopt(self, found: str, machine: Machine, network: Network) -> None:
        until_done(lambda: super(Patient, self).adopt(found, machine, network))


class ProxLab(Lab):
    """One try.  Each process has a driver and a database connection of its own."""

    def __init__(self, place: Path, sim, image: Image = TEMPLATE, **settings: object) -> None:
        self.place = place
        self.sim = sim
        self.image = image
        self.state = place / "s"
        self.plane = "a1b2c3"
        self.settings = {
            "url": sim.url,
            "token": sim.plane_token,
            "secret": {"file": str(place / "token")},
            "ca": str(sim.ca),
            "ids": f"{IDS[0]}-{IDS[1]}",
            "pool": "students",
            "storage": "vol-ceph-1",
            **settings,
        }
        (place / "token").write_text(sim.plane_secret)
        (place / "token").chmod(0o600)
        self._stacks: list[str] = []
        self._drivers: dict[int, Patient] = {}
        self._open: list = []
        self._making = threading.Lock()
        self.url = f"sqlite:///{place}/essaim.db"
        database = open_database(self.url)
        migrate(database)
        database.close()

    def new_driver(self, plane: str = "", **settings: object) -> Patient:
        """Another process's, or with `plane` and `url` another control plane's."""
        database = open_database(str(settings.pop("database", self.url)))
        migrate(database)
        site = Site(
            name="pve",
            driver="proxmox",
            settings={**self.settings, **settings},
            slots=settings.pop("slots", {}),  # type: ignore[arg-type]
        )
        driver = Patient(
            site,
            reservations=Reservations(database),
            limits=Limits(database),
            plane=plane or self.plane,
        )
        self._open.append((driver, database))
        return driver

    @property
    def driver(self) -> Patient:  # type: ignore[override]
        pid = os.getpid()
        with self._making:
            if pid not in self._drivers:
                self._drivers[pid] = self.new_driver()
        return self._drivers[pid]

    def stack(self, name: str = "lab") -> str:
        self._stacks.append(name)
        return name

    def close(self) -> None:
        for driver, database in self._open:
            driver.close()
            database.close()

    def host_key(self, machine: str) -> Path:
        return self.place / "none"

    def seed(self, machine: Machine) -> Seed:
        return Seed(
            hostname=machine.name.machine,
            host_key="not asked for",
            authorized_keys=("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA== lab",),
        )

    def create(self, machine: Machine, network: Network | None = None) -> MachineName:
        net = network or Network(cidr="10.77.0.0/24")
        self.driver.create(machine, net, self.image, self.seed(machine))
        return machine.name

    def up(self, stack: str, *numbers: int) -> list[MachineName]:
        names = [self.create(self.machine(stack, number)) for number in numbers]
        for name in names:
            self.driver.start(name)
        return names

    def await_ssh(self, name: MachineName) -> None:
        """Nobody answers in a simulation."""

    # What is there, as the cluster itself has it.

    def guests(self, *, ours: bool = True) -> dict[int, object]:
        with self.sim.cluster.clock.lock:
            found = dict(self.sim.cluster.guests)
        tag = f"essaim-{self.plane}"
        return {
            number: guest
            for number, guest in found.items()
            if not guest.template and (not ours or tag in str(guest.conf.get("tags", "")))
        }

    def guest(self, name: MachineName) -> object:
        (found,) = [g for g in self.guests().values() if g.name == name.machine]
        return found

    def lose_node_of_next_clone(self, **how: object) -> None:
        """Let a node be lost while a clone is made there; `lost` says when that has happened.

        By the cluster's own clock: however slow this computer is, the clone is not done by then.
        """
        cluster = self.sim.cluster
        usual = cluster.faults.task_began

        def began(task) -> None:
            usual(task)
            if task.type == "vzclone":
                cluster.faults.task_began = usual
                cluster.kernel.after(0.1, lambda: cluster.faults.node(task.node, **how))

        cluster.faults.task_began = began

    def lost(self) -> None:
        """NotYetError until a node is lost."""
        with self.sim.cluster.clock.lock:
            if all(node.online for node in self.sim.cluster.nodes.values()):
                raise NotYetError("no node is lost", after=0.02)

    def volumes(self) -> dict[str, int]:
        """Every disk on the cluster's storages but the templates', and whose number it has."""
        with self.sim.cluster.clock.lock:
            found = dict(self.sim.cluster.volumes)
        return {
            file: number for file, number in found.items() if "base-" not in file.rsplit("/")[-1]
        }

    def typed_on_a_node(self, number: int) -> None:
        """Somebody types `qm unlock N; qm destroy N --destroy-unreferenced-disks 1`, or pct's."""
        cluster = self.sim.cluster
        with cluster.clock.lock:
            cluster.remove(cluster.guests[number])
            for file in [file for file, its in cluster.volumes.items() if its == number]:
                del cluster.volumes[file]

    def first_processes(self, stack: str) -> list[int]:
        return [number for number, guest in self.guests().items() if guest.running]

    def held(self) -> dict[int, str]:
        database = open_database(self.url)
        try:
            its = Reservations(database)
            kinds = (
                "vmid",
                "mac",
                "boot",
                "leftover",
                *(f"address.{s}" for s in self._stacks),
            )
            return {n: h for kind in kinds for n, h in its.held("pve", kind).items()}
        finally:
            database.close()

    def uses(self) -> list:
        database = open_database(self.url)
        try:
            return Limits(database).uses("pve ")
        finally:
            database.close()


def narrow_rights(sim, who: str = "essaim@pve") -> None:
    """Leave an account the rights on its pool, and no more than it needs beside it."""
    sim.cluster.access.rules.pop(("/", "user", who), None)
    templates = [number for number, guest in sim.cluster.guests.items() if guest.template]
    rights = NARROW | {f"/vms/{number}": ("PVETemplateUser",) for number in templates}
    for path, roles in rights.items():
        for role in roles:
            sim.cluster.grant(path, who, role)


@contextmanager
def prox_lab(
    base: Path | None = None, image: Image = TEMPLATE, *, narrow: bool = True, **cluster
) -> Iterator[ProxLab]:
    """A lab with a cluster of its own, which is gone afterwards.

    Its token has rights on its pool alone; unless it is `narrow`, on everything.
    """
    from essaim_lab.simulators.proxmox import Simulator

    settings = {"nodes": 3, "speed": SPEED, "stats_seconds": 10.0, **cluster}
    with Simulator(**settings) as sim, tempfile.TemporaryDirectory(dir=base) as place:
        if narrow:
            narrow_rights(sim)
        made = ProxLab(Path(place), sim, image)
        try:
            yield made
        finally:
            made.close()
