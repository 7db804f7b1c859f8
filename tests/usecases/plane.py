"""A control plane of real parts over a test's database, without machines."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from essaim.model.fleet import Announcement, Beat, LeaseState, NodeState, Quota, Role
from essaim.model.invites import SignupMode
from essaim.plan.health import Policy
from essaim.store.audit.log import AuditLog
from essaim.store.events import Events
from essaim.store.fleet import Fleet
from essaim.store.invites import Invites
from essaim.store.journal import SqlJournal
from essaim.store.leases import Leases
from essaim.store.metrics import Metrics
from essaim.store.people import People
from essaim.store.rosters import Rosters
from essaim.store.settings import Settings
from essaim.store.visits import Visits
from essaim.store.workers import Workers
from essaim.usecases.credentials import digest
from signing import signing_keys

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJx1rKqXl7ZJcG9Vt0mC3o2y5QnC8m8m0mJ3H1g0Yy2k me@here"
CONTROL_KEY = "ssh-ed25519 AAAA control-plane"
PLENTY = Quota(machines=1000, hours=1e6)

#: So patient that no node goes stale because a test is slow.
PATIENT = Policy(interval=3600.0)


class Courier:
    """Remembers which runs it was told of."""

    def __init__(self) -> None:
        self.woken: list[str] = []

    def wake(self, run_id: str | None = None) -> None:
        self.woken.append(run_id)


class Plane:
    """What use cases of the fleet ask of their services."""

    def __init__(self, database, policy: Policy = PATIENT) -> None:
        self.database = database
        self.people = People(database)
        self.invites = Invites(database)
        self.signup_mode, self.breached = SignupMode.OPEN, None  # tests choose it
        self.signing_keys = signing_keys(database)
        self.events = Events(database)
        self.audit = AuditLog(database)
        self.visits = Visits(database)
        self.metrics = Metrics(database)
        self.fleet = Fleet(database, policy)
        self.leases = Leases(database, policy)
        self.journal = SqlJournal(database)
        self.workers = Workers(database)
        self.rosters = Rosters(database)
        self.broker, self.site_queues = "", False
        self.courier = Courier()
        self.settings = Settings(database)
        self.settings.first("public.control", CONTROL_KEY)  # as a controller does

    def user(
        self, name: str, role: Role = Role.MEMBER, *, quota: Quota = PLENTY, project: str = ""
    ):
        user = self.people.add(name, "no hash", role=role, quota=quota)
        return self.people.change(name, {"project": project}) if project else user

    def join(self, name: str, *, token: str = "", **said):
        """Let a machine join and return its node and credential; it is not clean yet."""
        if not token:
            token = f"token of {name}"
            self.fleet.enrol(digest(token), uses=1, seconds=3600)
        credential = f"credential of {name}"
        node, _run = self.fleet.register(digest(token), machine(name, **said), digest(credential))
        return node, credential

    def ready(self, name: str, **said):
        """A machine that joined and was proven clean."""
        node, _credential = self.join(name, **said)
        assert self.fleet.move(node.id, NodeState.READY, of=[NodeState.CLEANING])
        return self.fleet.get(node.id)

    def returned(self, lease_id: str) -> None:
        """What the release of a lease comes to in the end."""
        lease = self.leases.get(lease_id)
        for node in lease.nodes:
            self.fleet.move(node, NodeState.READY, of=[NodeState.HELD])
        self.leases.move(lease_id, LeaseState.ENDED, of=[LeaseState.ENDING])

    def runs(self, workflow: str) -> list:
        return self.journal.list(workflow=workflow, limit=10_000)


def machine(name: str, **said) -> Announcement:
    values = {
        "cores": 2,
        "memory": 2048,
        "address": "192.0.2.1",
        "host_key": f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5{digest(name)}",
    }
    return Announcement(name=name, **{**values, **said})


def beat(seq: int, boot: str = "boot-1", load: float = 0.0) -> Beat:
    return Beat(boot_id=boot, seq=seq, load=load)


def together(act, values) -> list:
    """Do it for all values at once."""
    values = list(values)
    barrier = threading.Barrier(len(values))

    def one(value):
        barrier.wait(60)
        return act(value)

    with ThreadPoolExecutor(len(values)) as threads:
        return list(threads.map(one, values))
