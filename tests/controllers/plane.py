"""Several processes of one control plane over a test's database, with machines that only answer."""

from __future__ import annotations

import io
import itertools
import json
import tarfile
import threading

import sqlalchemy as sa

from essaim.model.errors import TransientError
from essaim.model.fleet import LeaseState, NodeState, Wish
from essaim.plan.health import Policy
from essaim.remote.ssh import Result
from essaim.store.homes import Homes
from essaim.store.turns import Turns
from essaim.usecases import leases as leasing
from essaim.workflows.lending import Lending
from usecases.plane import KEY, Plane

#: Long enough that nothing happens by itself: times are set, not waited for.
POLICY = Policy(interval=1000.0)


class Remote:
    """Machines that answer, or not."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.asked: list[str] = []
        self.dropped: list[str] = []

    def fan_out(self, targets, _command, *, within, width):
        assert within
        assert width
        for target in targets:
            self.asked.append(target.name.machine)
            silent = target.name.machine in self.silent
            done = Result(exit_code=0, output="", stdout="", seconds=0.0)
            yield target, TransientError("silent") if silent else done

    def drop(self, name) -> None:
        self.dropped.append(name.machine)


class Helper:
    """What is asked of the helper on machines."""

    def __init__(self) -> None:
        self.clock = itertools.count(1000)
        self.saved: list[tuple[str, str, int]] = []
        self.messages: list[tuple[str, str, str]] = []
        self.slow: dict[str, threading.Event] = {}

    def save(self, target, account, _most, *, since, within) -> bytes:
        assert within
        name = target.name.machine
        if name in self.slow:
            assert self.slow[name].wait(60)
        self.saved.append((account, name, since))
        return layer(next(self.clock))

    def message(self, target, account, text) -> None:
        self.messages.append((account, target.name.machine, text))


def layer(at: int, **files: str) -> bytes:
    """A copy of a home, as machines send it."""
    label = json.dumps({"at": at, "names": sorted(files)})
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in {".essaim-layer": label, **files}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


class Services(Plane):
    """One process of a control plane."""

    def __init__(self, database, folder, policy: Policy = POLICY) -> None:
        super().__init__(database, policy)
        self.turns = Turns(database)
        self.remote = Remote()
        self.helper = Helper()
        self.lending = Lending(
            fleet=self.fleet,
            leases=self.leases,
            events=self.events,
            accounts=None,
            helper=self.helper,
            journal=self.journal,
            remote=self.remote,
            gateway_keys=list,
            homes=Homes(folder / "homes"),
        )

    def fleet_of(self, count: int) -> list:
        return [self.ready(f"node-{number:02}") for number in range(count)]

    def active(self, user, **wish):
        """A lease that is in use."""
        lease = leasing.rent(self, user, Wish(**wish), KEY)
        assert self.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.GRANTED])
        return self.leases.get(lease.id)

    def silence(self, *nodes: str) -> None:
        """Let nodes not have been heard of for so long that they are lost."""
        ago = round(self.fleet.policy.interval * 1000 * 4)
        for key in nodes:
            self.sql(f"UPDATE pulse SET beat_at = beat_at - {ago} WHERE node = '{key}'")

    def beat(self, *nodes: str) -> None:
        now = self.fleet.now()
        for key in nodes:
            self.sql(f"UPDATE pulse SET beat_at = {now} WHERE node = '{key}'")

    def due_now(self) -> None:
        """Let everybody's turn have been long ago."""
        self.sql("UPDATE setting SET value = '0' WHERE name LIKE 'turn.%'")

    def sql(self, statement: str) -> None:
        self.database.write(lambda connection: connection.execute(sa.text(statement)))

    def kinds(self, *kinds: str) -> list[str]:
        found = [event.kind for event in self.events.since(0)]
        return [kind for kind in found if kind in kinds] if kinds else found

    def states(self) -> dict[str, NodeState]:
        return {node.id: node.state for node in self.fleet.list()}
