"""One of all processes scales, and goes on where another was cut off (R-D7, R-D8)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from api.rig import wait_for
from controllers.scaling import Lines
from databases import KINDS
from essaim.controllers.autoscale import Autoscale, CpuGauge, QueueGauge
from essaim.controllers.leading import Leader
from essaim.model.errors import TransientError
from essaim.model.runs import NewRun
from essaim.plan.scaling import Policy
from essaim.scaling.replicas import Replica
from essaim.store.events import Events
from essaim.store.journal import SqlJournal
from essaim.store.scaling import Scaling
from patience import EVERYTHING

TESTS = Path(__file__).parents[1]
POLICY = Policy(most=5, interval=5.0, rise=0.0, fall=0.0, cooldown=0.0)


class Service:
    """Replicas that use as much CPU as they are told to."""

    def __init__(self, count: int) -> None:
        self.replicas = {f"r{number}": 0.0 for number in range(count)}
        self.trouble = ""
        self.closed = False

    def list(self):
        self._fail()
        return [Replica(name, used, 1.0) for name, used in self.replicas.items()]

    def add(self, count) -> None:
        self._fail()
        for _ in range(count):
            self.replicas[f"r{len(self.replicas)}"] = 0.0

    def remove(self, ids) -> None:
        self._fail()
        for name in ids:
            del self.replicas[name]

    def close(self) -> None:
        self.closed = True

    def work(self, seconds: float) -> None:
        for name in self.replicas:
            self.replicas[name] += seconds / len(self.replicas)

    def _fail(self) -> None:
        if self.trouble:
            raise TransientError(self.trouble, hint="see to it")


class Rig:
    """A service, whoever scales it, and a clock that is moved by hand."""

    def __init__(self, database, count=1, policy=POLICY) -> None:
        self.database, self.policy = database, policy
        self.service, self.scaling = Service(count), Scaling(database)
        self.leader, self.controller = self.process("one")
        self.leader.try_once()

    def process(self, owner: str):
        leader = Leader(self.scaling, "api", owner, lease=60.0)
        gauge = CpuGauge(self.policy)
        made = Autoscale(
            self.scaling, leader, self.service, gauge, service="api", policy=self.policy
        )
        return leader, made

    def sql(self, text: str) -> None:
        self.database.write(lambda c: c.execute(sa.text(text)))

    def look(self, load: float, controller=None):
        """Let five seconds go by in which the replicas have so much to do; then look."""
        self.sql("UPDATE scaling SET at = at - 5000")
        last, now = self.scaling.last("api"), self.scaling.now()
        # Exactly as long as went by, however slow this computer is.
        passed = (now - last.sample.at) / 1000 if last else 5.0
        self.service.work(load * passed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.scaling, "now", lambda: now)
            (controller or self.controller).reconcile()
        return self.scaling.last("api")


def test_the_loop_closes(database):
    rig = Rig(database)
    assert rig.look(0.0).decision.replicas == 1
    assert rig.look(0.9).decision.replicas == 2
    assert len(rig.service.replicas) == 2
    for _ in range(4):
        rig.look(0.9)
    assert len(rig.service.replicas) == 2
    for _ in range(4):
        look = rig.look(0.05)
    assert look.decision.replicas == len(rig.service.replicas) == 1
    kinds = [event.kind for event in Events(database).since(0)]
    assert kinds == ["scaling.up", "scaling.down"]


def test_what_is_there_at_first_is_what_was_wanted(sqlite):
    rig = Rig(sqlite, count=3)
    assert rig.look(0.0).sample.wanted == 3


def test_one_that_died_is_replaced_and_one_too_many_removed(sqlite):
    rig = Rig(sqlite, count=2)
    rig.look(1.0)
    rig.service.replicas.popitem()
    rig.look(1.0)
    assert len(rig.service.replicas) == 2
    rig.service.add(1)
    rig.look(1.0)
    assert list(rig.service.replicas) == ["r0", "r1"]


def test_who_cannot_look_changes_nothing_and_says_so(sqlite):
    rig = Rig(sqlite, count=3)
    rig.look(0.1)
    rig.service.trouble = "the engine is away"
    look = rig.look(0.1)
    assert (look.seen, look.decision.replicas, look.sample.high) == (None, 3, None)
    assert "the engine is away (see to it)" in look.trouble
    rig.service.trouble = ""
    assert rig.look(0.1).trouble == ""
    assert len(rig.service.replicas) == 3


def test_what_could_not_be_done_is_tried_again(sqlite, monkeypatch):
    rig = Rig(sqlite)
    rig.look(0.0)

    def refuse(_count):
        raise TransientError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(rig.service, "add", refuse)
        assert rig.look(0.9).decision.replicas == 2
        assert "there are 1 instead of 2: no room" in rig.look(0.9).trouble
    rig.look(0.9)
    assert len(rig.service.replicas) == 2


def test_a_stand_by_does_nothing_and_then_goes_on_with_what_is_known(database):
    rig = Rig(database, count=2)
    rig.look(0.0)
    leader, stand_by = rig.process("two")
    leader.try_once()
    assert leader.epoch is None
    looks = len(rig.scaling.looks("api", 3600))
    stand_by.reconcile()
    assert len(rig.scaling.looks("api", 3600)) == looks
    rig.sql("UPDATE scaler SET until_at = 1")  # the first is silent for too long
    leader.try_once()
    look = rig.look(1.9, stand_by)
    assert look.sample.low == pytest.approx(1.9, abs=0.05)  # measured since a look of the other
    assert look.decision.replicas == 4


def test_one_that_was_frozen_past_its_lease_writes_and_does_nothing(database):
    rig = Rig(database, count=1)
    rig.look(0.0)
    rig.sql("UPDATE scaler SET until_at = 1")
    other, _ = rig.process("two")
    other.try_once()
    assert other.epoch == 2
    # It still believes that it scales: its clock stood still with it.
    assert rig.leader.epoch == 1
    before = rig.scaling.looks("api", 3600)
    rig.service.work(5.0)
    rig.controller.reconcile()
    assert rig.scaling.looks("api", 3600) == before
    assert len(rig.service.replicas) == 1


def test_nobody_believes_to_scale_longer_than_the_lease(sqlite):
    now = [100.0]
    leader = Leader(Scaling(sqlite), "api", "one", lease=6.0, clock=lambda: now[0])
    leader.try_once()
    assert leader.epoch == 1
    now[0] += 6.0
    assert leader.epoch is None


def test_a_dead_process_of_this_host_is_followed_at_once(sqlite):
    program = "from essaim.engine.owner import this_owner; print(this_owner())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    scaling = Scaling(sqlite)
    scaling.take("api", done.stdout.decode().strip(), 3600)
    leader = Leader(scaling, "api", "heir")
    leader.try_once()
    assert leader.epoch == 2


def test_who_stops_lets_another_take_over(sqlite):
    rig = Rig(sqlite)
    rig.controller.close()
    assert rig.service.closed
    assert rig.scaling.take("api", "two", 60) == 2


def test_workers_are_scaled_on_what_waits(database):
    scaling, policy = Scaling(database), Policy(target=1.0)
    runs = [NewRun(id=f"r-{number}", workflow="w", subject="s") for number in range(6)]
    SqlJournal(database).add(runs)
    sample = QueueGauge(policy, scaling, each=4)([], None, at=1, wanted=2)
    assert (sample.low, sample.high, sample.pressing) == (1.5, 1.5, False)
    database.write(lambda c: c.execute(sa.text("UPDATE run SET due_at = due_at - 31000")))
    assert QueueGauge(policy, scaling, each=4)([], None, at=1, wanted=2).pressing


@contextlib.contextmanager
def scaler(url: str, owner: str, path: Path):
    process = subprocess.Popen(
        [sys.executable, "-m", "controllers.scaling", url, owner, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=TESTS,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.parametrize("kind", KINDS if EVERYTHING else ["mariadb"])
def test_a_stand_by_takes_over_from_one_that_was_killed(database, url, tmp_path):
    scaling, lines = Scaling(database), tmp_path / "replicas"

    def holder() -> str:
        return next((each.owner for each in scaling.holders() if each.left > 0), "")

    def seen() -> int:
        return len(Lines(lines).list())

    # Names that say nothing about a process: only the lease can tell that it is dead.
    with scaler(url, "one", lines) as first:
        wait_for(lambda: holder() == "one" and seen() == 2)
        with scaler(url, "two", lines):
            first.send_signal(signal.SIGKILL)
            first.wait(60)
            lines.write_text("")  # and with it went the replicas
            wait_for(lambda: seen() == 2)
            wait_for(lambda: holder() == "two")
    (held,) = scaling.holders()
    assert held.epoch == 2


@pytest.mark.parametrize("kind", KINDS if EVERYTHING else ["postgresql"])
def test_one_that_was_stopped_and_woken_finds_itself_replaced(database, url, tmp_path):
    scaling, lines = Scaling(database), tmp_path / "replicas"

    def held() -> tuple[str, int]:
        return next(((each.owner, each.epoch) for each in scaling.holders()), ("", 0))

    with scaler(url, "one", lines) as first:
        wait_for(lambda: held() == ("one", 1))
        with scaler(url, "two", lines):
            first.stdin.write("stop\n")
            first.stdin.flush()
            os.waitid(os.P_PID, first.pid, os.WSTOPPED)
            wait_for(lambda: held() == ("two", 2))
            first.send_signal(signal.SIGCONT)
            before = scaling.now()
            wait_for(lambda: scaling.now() - before > 2000)  # looks of its own, were it believed
            assert held() == ("two", 2)
