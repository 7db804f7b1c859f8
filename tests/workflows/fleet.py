"""A fleet of real machines with one lease on it for the generic suite, and a case per workflow.

Beside the folders of the trials lies `rig.json`, which says where the machines and the database
are: every process that takes part in a trial finds them there.
"""

from __future__ import annotations

import contextlib
import json
import time
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa

# Imported before the nursery forks: what it has not imported, each of its children would.
import essaim.remote.pool
from essaim.engine.execute import Engine
from essaim.engine.owner import this_owner
from essaim.engine.workflow import Workflow
from essaim.model.errors import RejectedError
from essaim.model.fleet import Announcement, LeaseState, NodeState, Quota, Wish
from essaim.model.runs import RunState
from essaim.plan.health import Policy
from essaim.remote.accounts import NativeAccounts
from essaim.store.audit.log import AuditLog
from essaim.store.database import Database, open_database
from essaim.store.events import Events
from essaim.store.fleet import Fleet
from essaim.store.homes import Homes
from essaim.store.journal import SqlJournal
from essaim.store.leases import Leases
from essaim.store.migrate import migrate
from essaim.store.people import People
from essaim.usecases.credentials import digest
from essaim.workflows import migrating, releasing
from essaim.workflows.lending import Lending
from essaim.workflows.table import WORKFLOWS
from workflows.generic import PATIENCE, Case, finish
from workflows.workers import NAMES, Workers, workers_at

assert essaim.remote.pool

# A machine that is there must not be taken for lost because everything else is slow.
migrating.FENCE_WITHIN = releasing.LOST_WITHIN = 60.0
migrating.GOODBYE_WITHIN = releasing.GOODBYE_WITHIN = 300.0

#: So patient that no node goes stale because a test is slow.
PATIENT = Policy(interval=3600.0)

#: What every trial begins without.
WIPED = ("event", "lease", "step", "wait", "hold", "run")

# What a client leaves behind, all of which is to be gone in the end.
LIVE = """
cd /home/$1 && echo precious >thesis && chown $1: thesis
runuser -u $1 -- sh -c 'echo x >/tmp/of-$1; echo "* * * * * true" | crontab -'
setsid runuser -u $1 -- sleep 3000 </dev/null >/dev/null 2>&1 &
until pgrep -u $1 -x sleep >/dev/null; do sleep 0.01; done  # or it is there only after the reset
"""


class World:
    """A fleet, its database, and what can be seen of both."""

    def __init__(self, place: Path, workers: Workers, database: Database) -> None:
        self.place = place
        self.workers = workers
        self.database = database
        self.fleet = Fleet(database, PATIENT)
        self.leases = Leases(database, PATIENT)
        self.events = Events(database)
        self.audit = AuditLog(database)
        self.people = People(database)
        self.journal = SqlJournal(database)
        self.homes = Homes(place / "homes")
        #: Machines that answer nobody, though they are not off.
        self.cut_off: set[str] = set()
        native = NativeAccounts(workers.remote)
        self.lending = Lending(
            fleet=self.fleet,
            leases=self.leases,
            events=self.events,
            accounts=native,
            helper=native,
            journal=self.journal,
            remote=workers.remote,
            gateway_keys=lambda: [workers.keyring.user_public_key()],
            homes=self.homes,
            dial=self.dial,
        )
        self.tools = types.SimpleNamespace(lending=self.lending)

    def dial(self, node_id: str):
        name = self.fleet.get(node_id).name
        if name in self.cut_off:
            raise RejectedError(f"{name} is cut off")  # at once: nobody waits for it to come up
        return self.workers.dial(name)

    # -- before a trial -------------------------------------------------------------------------

    def once(self, prepare: Callable[[World], None]) -> World:
        """Bring the world to where the trial begins; not again in those who come later."""
        done = self.place / "prepared.json"
        if not done.exists():
            self.wipe()
            prepare(self)
            self.forget_runs()
            done.write_text(json.dumps({"lease": self.lease_id, "node": self.node_id}))
        for key, value in json.loads(done.read_text()).items():
            setattr(self, key if key.endswith("_id") else f"{key}_id", value)
        return self

    def wipe(self) -> None:
        self.lease_id = self.node_id = ""

        def body(connection) -> None:
            for table in WIPED:
                connection.exec_driver_sql(f"DELETE FROM {table}")
            # The nodes stay, and with them the connections to their machines.
            connection.exec_driver_sql("UPDATE node SET state = 'cleaning', lease = NULL")

        self.database.write(body)

    def forget_runs(self) -> None:
        """Let nothing run but what is tried: it carries the same work."""
        waiting = "SELECT id FROM run WHERE state IN ('ready', 'running', 'waiting')"

        def body(connection) -> None:
            for run in connection.exec_driver_sql(waiting).scalars().all():
                connection.execute(sa.text("DELETE FROM run WHERE id = :run"), {"run": run})

        self.database.write(body)

    def join(self, *names: str) -> None:
        for name in names or NAMES:
            token = f"token {self.place} {name}"
            self.fleet.enrol(digest(token), uses=1, seconds=3600)
            said = Announcement(
                name=name,
                cores=1,
                memory=256,
                host_key=self.workers.host_key(name),
                tunnel=True,
            )
            node, _ = self.fleet.register(digest(token), said, digest(f"of {token}"), proven=True)
            self.node_id = node.id

    def ready(self, *names: str) -> None:
        self.join(*names)
        for node in self.fleet.list():
            if not names or node.name in names:
                self.fleet.move(node.id, NodeState.READY, of=[NodeState.CLEANING])

    def rent(self, count: int = 1, **wish) -> None:
        name = f"student-{self.place.name}-{self.place.parent.name}"[:31].lower()
        found = self.people.find(name)
        user = found[0] if found else self.people.add(name, "-", quota=Quota(machines=9, hours=1e6))
        key = self.workers.keyring.user_public_key()
        self.lease_id = self.leases.rent(user.id, Wish(count=count, **wish), key).id
        assert self.its_lease().state is LeaseState.GRANTED

    def activate(self) -> None:
        """Give the lease what `rent` gives it, and let its owner work."""
        lease = self.its_lease()
        for node in self.fleet.list(ids=lease.nodes):
            keys, until = [lease.public_key], (lease.expires_at or 0) // 1000
            self.lending.accounts.create(
                self.lending.target(node), lease.account, keys, until, {}, at=node.read_at
            )
            self.workers.sh(node.name, f"set -- {lease.account}\n{LIVE}")
        self.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.GRANTED])

    def lose(self) -> None:
        """Let the lease's first node be thought lost; its home was copied before."""
        lease = self.its_lease()
        (self.node_id,) = lease.nodes
        self.lending.copy_home(lease, self.fleet.get(self.node_id))
        self.fleet.move(self.node_id, NodeState.LOST, of=[NodeState.HELD])
        assert self.leases.migrate(lease.id, self.node_id)

    def lose_silently(self) -> None:
        """Let the lease's node be thought lost, without a copy of its home."""
        self.fleet.move(self.node_id, NodeState.LOST, of=[NodeState.HELD])
        assert self.leases.migrate(self.lease_id, self.node_id)

    def sql(self, statement: str) -> None:
        self.database.write(lambda connection: connection.exec_driver_sql(statement))

    def notes(self) -> str:
        return " ".join(run.note for run in self.journal.list())

    def refuse(self) -> None:
        raise RejectedError("made to fail")

    def before(self, workflow: str, step: str, act: Callable[[], object]) -> None:
        """Carry everything, and do something just before a step is first executed."""
        flow, acted = WORKFLOWS[workflow], []

        def do(context):
            if not acted:
                acted.append(step)
                act()
            return flow.step(step).do(context)

        steps = (replace(each, do=do) if each.name == step else each for each in flow.steps)
        self.carry({**WORKFLOWS, workflow: Workflow(workflow, tuple(steps))})
        assert acted

    # -- after it -------------------------------------------------------------------------------

    def its_lease(self):
        return self.leases.get(self.lease_id)

    def carry(self, workflows: Mapping[str, Workflow] = WORKFLOWS) -> None:
        """Let everything that is under way come to its end."""

        def over() -> bool:
            return all(run.state.over or run.state is RunState.STUCK for run in self.journal.list())

        self.work(over, workflows)

    def work(
        self, until: Callable[[], bool], workflows: Mapping[str, Workflow] = WORKFLOWS
    ) -> None:
        """Work until something is so."""
        engine = Engine(self.journal, workflows, self.tools, owner=this_owner())
        deadline = time.monotonic() + 2 * PATIENCE  # a playbook takes its time
        while not until():
            due = engine.work()
            if due is not True:
                assert time.monotonic() < deadline, self.journal.list()
                time.sleep(min(due, 0.05))
        engine.close()

    def settle(self) -> None:
        """Let the cleaning that was begun be finished, as the server's courier would."""
        left = self.journal.list(
            workflow="clean", states=[RunState.READY, RunState.RUNNING, RunState.WAITING]
        )
        engine = Engine(self.journal, WORKFLOWS, self.tools, owner=this_owner())
        for run in left:
            finish(engine, self.journal, run.id)
        engine.close()

    def seen(self) -> object:
        """What is on the machines, and what the store believes: without what differs by trial."""
        self.settle()
        lease = self.its_lease() if self.lease_id else None
        nodes = self.fleet.list()
        machines = self.workers.seen([node.name for node in nodes])
        return {
            # Which machine got the lease is chance.
            "machines": sorted(
                (node.state.value, bool(node.lease), _anonymous(machines[node.name], lease))
                for node in nodes
            ),
            "lease": lease and (lease.state.value, len(lease.nodes), len(set(lease.nodes))),
            "serving": lease
            and sorted(node.state.value for node in nodes if node.id in lease.nodes),
            "homes": len(self.homes.leases()),
        }

    def clean(self) -> None:
        self.workers.reset([node.name for node in self.fleet.list()])
        self.database.close()

    def case(self, workflow: str, undone: object = None, **its: str) -> Case:
        return Case(
            workflow=WORKFLOWS[workflow],
            others=tuple(flow for name, flow in WORKFLOWS.items() if name != workflow),
            tools=self.tools,
            journal=self.journal,
            seen=self.seen,
            undone=undone,
            input=its,
            subject=its.get("lease") or its["node"],
            clean=self.clean,
        )


def _anonymous(found: list[str], lease) -> list[str]:
    return [line.replace(lease.id, "LEASE") for line in found] if lease else found


def world_at(place: Path) -> World:
    rig = json.loads((place.parent / "rig.json").read_text())
    return World(place, workers_at(Path(rig["folder"])), open_database(rig["url"]))


@contextlib.contextmanager
def world(place: Path) -> Iterator[World]:
    """A world for a test that is not one of the suite's."""
    place.mkdir()
    made = world_at(place)
    migrate(made.database)
    made.wipe()
    try:
        yield made
    finally:
        made.clean()


# -- the cases ------------------------------------------------------------------------------------

GONE: list[str] = []


def rent_case(place: Path) -> Case:
    def prepare(world: World) -> None:
        world.ready()
        world.rent(count=2)

    world = world_at(place).once(prepare)
    undone = {
        "machines": [("ready", False, GONE)] * 3,
        "lease": ("failed", 2, 2),
        "serving": ["ready", "ready"],
        "homes": 0,
    }
    return world.case("rent", undone, lease=world.lease_id)


def release_case(place: Path) -> Case:
    def prepare(world: World) -> None:
        world.ready("one", "two")
        world.rent(count=2)
        world.activate()
        world.leases.release(world.lease_id, reason="enough")

    world = world_at(place).once(prepare)
    return world.case("release", lease=world.lease_id)


def clean_case(place: Path) -> Case:
    def prepare(world: World) -> None:
        world.ready("one")
        world.rent()
        world.activate()
        world.leases.release(world.lease_id)
        world.leases.move(world.lease_id, LeaseState.ENDED, of=[LeaseState.ENDING])
        (key,) = world.its_lease().nodes
        world.fleet.clean(key, of=[NodeState.HELD])
        world.node_id = key
        world.lease_id = ""

    world = world_at(place).once(prepare)
    undone = {"machines": [("lost", False, GONE)], "lease": None, "serving": None, "homes": 0}
    return world.case("clean", undone, node=world.node_id)


def migrate_case(place: Path) -> Case:
    def prepare(world: World) -> None:
        world.ready("one", "two")
        world.rent()
        world.activate()
        (world.node_id,) = world.its_lease().nodes
        world.lose_silently()  # its home is copied when it is fenced

    world = world_at(place).once(prepare)
    return world.case("migrate", _not_moved, lease=world.lease_id, node=world.node_id)


def _not_moved(seen) -> bool:
    """The lease is as before, for somebody to try again; the spare machine is clean and free."""
    states = [state for state, _, found in seen["machines"] if state == "lost" or not found]
    return seen["lease"] == ("active", 1, 1) and sorted(states) == ["lost", "ready"]


def renew_case(place: Path) -> Case:
    def prepare(world: World) -> None:
        world.ready("one")
        world.rent()
        world.activate()
        world.leases.extend(world.lease_id, 3600)

    world = world_at(place).once(prepare)
    return world.case("renew", _as_it_was, lease=world.lease_id)


def _as_it_was(seen) -> bool:
    return seen["lease"] == ("active", 1, 1)


LEASES = {
    "renew": renew_case,
    "rent": rent_case,
    "release": release_case,
    "clean": clean_case,
    "migrate": migrate_case,
}
