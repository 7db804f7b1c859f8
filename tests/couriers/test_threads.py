from __future__ import annotations

import itertools
import math
import threading
import time

import pytest

from essaim.couriers.threads import ThreadCourier
from essaim.engine.execute import Engine
from essaim.engine.workflow import Step, Workflow
from essaim.model.errors import TransientError
from essaim.model.runs import Again, NewRun, RunState
from essaim.store.journal import SqlJournal

PATIENCE = 60.0


class Rig:
    """A journal, an engine with one workflow, and a courier."""

    def __init__(self, database) -> None:
        self.journal = SqlJournal(database)
        self.couriers: list[ThreadCourier] = []
        self.workflows: dict[str, Workflow] = {}

    def courier(self, do, *, owner: str = "me", threads: int = 32) -> ThreadCourier:
        steps = (Step(name="one", do=do), Step(name="two", do=lambda _context: None))
        self.workflows["w"] = Workflow("w", steps)
        self.engine = Engine(self.journal, self.workflows, None, owner=owner)
        made = ThreadCourier(self.engine, threads)
        self.couriers.append(made)
        return made

    def start(self, *keys: str) -> None:
        self.engine.start([NewRun(id=key, workflow="w", subject=key) for key in keys])

    def states(self, *keys: str) -> list[str]:
        return [self.journal.get(key).state.value for key in keys]


@pytest.fixture
def rig(sqlite):
    made = Rig(sqlite)
    yield made
    for courier in made.couriers:
        assert courier.stop()


def test_runs_are_carried_until_they_are_over(rig):
    courier = rig.courier(lambda _context: None)
    rig.start("a", "b", "c")
    for key in "abc":
        assert courier.wait(key, PATIENCE)
    assert rig.states(*"abc") == ["done"] * 3


def test_nothing_is_started_before_it_is_needed(rig):
    courier = rig.courier(lambda _context: None)
    assert courier._threads == set()
    assert courier.wait(lambda: True)


def test_slow_steps_run_side_by_side(rig):
    barrier = threading.Barrier(6)

    def do(_context):
        barrier.wait(PATIENCE)

    courier = rig.courier(do)
    rig.start(*"abcdef")
    assert courier.wait(lambda: rig.states(*"abcdef") == ["done"] * 6, PATIENCE)


def test_no_more_threads_than_allowed(rig):
    inside, most = [], []
    lock = threading.Lock()

    def do(_context):
        with lock:
            inside.append(1)
            most.append(len(inside))
        time.sleep(0.01)  # long enough for others to be let in, were they allowed
        with lock:
            inside.pop()

    courier = rig.courier(do, threads=2)
    keys = [f"r{number}" for number in range(8)]
    rig.start(*keys)
    assert courier.wait(lambda: rig.states(*keys) == ["done"] * 8, PATIENCE)
    assert len(courier._threads) <= 2
    assert max(most) <= 2


def test_a_pause_holds_no_thread_and_ends_in_time(rig):
    looks = []

    def do(_context):
        looks.append(time.monotonic())
        return Again(0.2) if len(looks) < 3 else None

    courier = rig.courier(do, threads=1)
    rig.start("a")
    assert courier.wait("a", PATIENCE)
    pauses = [later - earlier for earlier, later in itertools.pairwise(looks)]
    assert all(pause >= 0.19 for pause in pauses)


def test_waking_finds_new_runs_while_idle(rig):
    courier = rig.courier(lambda _context: None)
    for key in "abc":
        rig.start(key)
        courier.wake(key)
        assert courier.wait(key, PATIENCE)


def test_runs_of_other_processes_are_found_without_being_told(rig):
    courier = rig.courier(lambda _context: None)
    courier.wake()
    rig.journal.add([NewRun(id="a", workflow="w", subject="s")])
    deadline = time.monotonic() + PATIENCE
    while rig.states("a") != ["done"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_waiting_gives_up_in_time(rig):
    courier = rig.courier(lambda _context: Again(3600))
    rig.start("a")
    assert not courier.wait("a", timeout=0.1)
    assert courier.wait(lambda: True, timeout=0.0)


def test_stopping_lets_the_step_end_and_hands_the_run_back(rig):
    entered, leave = threading.Event(), threading.Event()

    def do(context):
        if context.run.id == "a":  # "b" may be quicker, and "a" would be handed back untouched
            entered.set()
        assert leave.wait(PATIENCE)
        return {"x": 1}

    courier = rig.courier(do)
    rig.start("a", "b")
    courier.wake()
    assert entered.wait(PATIENCE)
    courier.interrupt()
    leave.set()
    assert not courier.wait("a", PATIENCE)  # all has come to a halt
    assert courier.stop()
    run = rig.journal.get("a")
    assert (run.state, run.owner) == (RunState.READY, "")
    assert rig.journal.steps("a")[0].output == {"x": 1}
    again = rig.courier(do, owner="another")
    assert again.wait("a", PATIENCE)
    assert again.wait("b", PATIENCE)
    assert rig.states("a", "b") == ["done", "done"]


def test_stopping_without_handing_back_waits_for_nothing(rig):
    entered, leave = threading.Event(), threading.Event()

    def do(_context):
        entered.set()
        assert leave.wait(PATIENCE)

    courier = rig.courier(do)
    rig.start("a")
    courier.wake()
    assert entered.wait(PATIENCE)
    assert not courier.stop(hand_back=False)
    leave.set()
    assert courier.stop()


def test_interrupting_wakes_whoever_waits(rig):
    courier = rig.courier(lambda _context: Again(3600))
    rig.start("a")
    answers = []
    waiter = threading.Thread(target=lambda: answers.append(courier.wait("a")))
    waiter.start()
    deadline = time.monotonic() + PATIENCE
    while not rig.journal.steps("a"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    courier.interrupt()
    waiter.join(PATIENCE)
    assert answers == [False]


class Faulty:
    """An engine whose journal is away at first, and which counts how often it is asked."""

    def __init__(self, faults: int) -> None:
        self.faults = faults
        self.asked: list[float] = []

    def work(self, claimed=None):
        self.asked.append(time.monotonic())
        if len(self.asked) <= self.faults:
            raise TransientError("database away")
        return math.inf

    def settled(self, run: str) -> bool:
        return len(self.asked) > self.faults

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_journal_that_is_away_ends_no_thread_and_is_said_once(caplog):
    engine = Faulty(faults=2)
    courier = ThreadCourier(engine)
    assert courier.wait("a", PATIENCE)
    assert courier.stop()
    assert [r.getMessage() for r in caplog.records] == ["database away; trying again"]


def test_idle_threads_do_not_poll(monkeypatch):
    engine = Faulty(faults=0)
    courier = ThreadCourier(engine)
    courier.wake()
    deadline = time.monotonic() + PATIENCE
    while len(engine.asked) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    courier.stop()
    gaps = [later - earlier for earlier, later in itertools.pairwise(engine.asked)]
    assert all(gap >= 0.9 for gap in gaps)
