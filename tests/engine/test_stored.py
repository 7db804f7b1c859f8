"""Steps that act on the store alone are one write with their beginning and their end."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from engine.test_execute import Rig
from essaim.engine.workflow import Backoff, OnFailure, Step
from essaim.model.errors import RejectedError, TransientError
from essaim.model.runs import RunState
from essaim.store.schema import slot


@pytest.fixture
def rig(database):
    made = Rig(database)
    yield made
    for engine in made.engines:
        engine.close()


class Effect:
    """Adds a row to the store, and fails as often as it is told to."""

    def __init__(self, rig: Rig, *errors: Exception) -> None:
        self.rig = rig
        self.errors = list(errors)
        self.seen: list[int] = []

    def __call__(self, _context) -> None:
        database = self.rig.database
        database.write(lambda c: c.execute(sa.insert(slot), {"name": "effect"}))
        self.seen.append(database.read(lambda c: len(c.execute(sa.select(slot)).all())))
        if self.errors:
            raise self.errors.pop(0)

    def there(self) -> int:
        return self.rig.database.read(lambda c: len(c.execute(sa.select(slot)).all()))


def stored(effect, **more) -> Step:
    return Step(name="keep", do=effect, stored=True, **more)


def test_its_effect_and_the_end_of_its_run_are_one_write(rig, monkeypatch):
    effect = Effect(rig)
    rig.workflow(rig.step("one", [{"x": 1}]), stored(effect))
    writes = []
    write = rig.journal.write
    monkeypatch.setattr(
        rig.journal, "write", lambda *args: (writes.append(args[2]), write(*args))[1]
    )
    assert rig.go().state is RunState.DONE
    assert [move.state for move in writes] == [RunState.DONE]
    assert rig.states() == {"one": "done", "keep": "done"}
    assert (effect.there(), effect.seen) == (1, [1])
    assert [kind for kind, _, _ in rig.events] == ["started", "step", "step", "done"]
    assert rig.journal.steps("a")[1].finished_at is not None


def test_one_in_the_middle_or_at_the_beginning_goes_on(rig):
    effect = Effect(rig)
    rig.workflow(stored(effect), rig.step("two"))
    assert rig.go().state is RunState.DONE
    assert rig.states() == {"keep": "done", "two": "done"}
    assert rig.did == ["two"]


def test_nothing_of_one_that_fails_happens_and_the_run_is_undone(rig):
    effect = Effect(rig, RejectedError("no"))
    rig.workflow(rig.step("one"), stored(effect))
    run = rig.go()
    assert (run.state, run.error) == (RunState.FAILED, "no")
    assert rig.did == ["one", "-one"]
    assert (effect.there(), effect.seen) == (0, [1])
    assert rig.states() == {"one": "undone", "keep": "failed"}


def test_one_that_stops_goes_on_when_it_is_resumed(rig):
    effect = Effect(rig, RejectedError("no"))
    rig.workflow(rig.step("one"), stored(effect, on_failure=OnFailure.STOP))
    engine = rig.engine()
    assert rig.go(engine=engine).state is RunState.STUCK
    assert effect.there() == 0
    engine.resume("a")
    rig.drain(engine)
    assert rig.journal.get("a").state is RunState.DONE
    assert effect.there() == 1


def test_one_is_tried_again(rig):
    effect = Effect(rig, TransientError("later"))
    rig.workflow(stored(effect, retry=Backoff(attempts=3, first=0.0, longest=0.0)))
    assert rig.go().state is RunState.DONE
    assert (effect.there(), len(effect.seen)) == (1, 2)


def test_one_that_returns_something_is_refused(rig):
    rig.workflow(Step(name="keep", do=lambda _context: {"x": 1}, stored=True))
    run = rig.go()
    assert run.state is RunState.FAILED
    assert run.error == "step keep of workflow w is stored and must return nothing"


def test_the_effect_of_a_worker_that_lost_its_run_does_not_happen(rig):
    effect = Effect(rig)

    def taken(_context) -> None:
        rig.journal.abandon("a")

    rig.workflow(Step(name="one", do=taken), stored(effect))
    assert rig.go().state is RunState.ABANDONED
    assert (effect.there(), effect.seen) == (0, [])
