"""How an engine carries runs, on SQLite; the generic suite does the same on all databases."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time

import pytest
import sqlalchemy as sa

from essaim.engine import carry
from essaim.engine.execute import Engine
from essaim.engine.failure import pause
from essaim.engine.owner import this_owner
from essaim.engine.workflow import Backoff, OnFailure, Step, Workflow
from essaim.model.errors import (
    HeldError,
    NotYetError,
    RejectedError,
    StoreAwayError,
    StoreBrokenError,
    StuckError,
    TransientError,
)
from essaim.model.runs import Again, NewRun, RunState, StepState
from essaim.store.journal import SqlJournal

AT_ONCE = Backoff(attempts=3, first=0.0, longest=0.0)


class Rig:
    """A journal, and an engine whose steps do as the test says."""

    def __init__(self, database) -> None:
        self.database = database
        self.journal = SqlJournal(database)
        self.events: list[tuple[str, str, str]] = []
        self.workflows: dict[str, Workflow] = {}
        self.engines: list[Engine] = []
        self.capacity = 1
        self.did: list[str] = []

    def engine(self, owner: str = "me", **more) -> Engine:
        made = Engine(
            self.journal,
            self.workflows,
            self,
            owner=owner,
            emit=lambda e: self.events.append((e.kind, e.step, e.text)),
            slots=lambda _name: self.capacity,
            random=lambda: 0.0,
            **more,
        )
        self.engines.append(made)
        return made

    def workflow(self, *steps: Step, name: str = "w") -> None:
        self.workflows[name] = Workflow(name, steps)

    def step(self, name: str, answers=None, *, undo=(), **more) -> Step:
        """A step that gives these answers in turn: values, Again, or exceptions."""
        replies = list(answers) if answers is not None else [None]
        undoes = None if undo is None else list(undo)

        def do(_context):
            self.did.append(name)
            return self.reply(replies)

        def do_undo(_context):
            self.did.append(f"-{name}")
            return self.reply(undoes)

        return Step(name=name, do=do, undo=None if undo is None else do_undo, **more)

    @staticmethod
    def reply(replies):
        answer = (replies.pop(0) if len(replies) > 1 else replies[0]) if replies else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def go(self, key: str = "a", engine: Engine | None = None, **more):
        """Start a run and work until nothing is due."""
        engine = engine or self.engine()
        engine.start([NewRun(id=key, workflow="w", subject="s", **more)])
        self.drain(engine)
        return self.journal.get(key)

    def drain(self, engine: Engine) -> float:
        while (due := engine.work()) is True or due <= 0.01:
            pass
        return due

    def states(self, key: str = "a") -> dict[str, str]:
        return {step.name: step.state.value for step in self.journal.steps(key)}


@pytest.fixture
def rig(sqlite):
    made = Rig(sqlite)
    yield made
    for engine in made.engines:
        engine.close()


def test_steps_are_done_in_order_with_their_outputs(rig):
    def second(context):
        assert context.outputs == {"one": {"x": [1, 2]}}
        assert (context.step, context.attempt, context.tools) == ("two", 1, rig)
        assert context.run.input == {"k": "v"}
        assert 0 <= context.elapsed < 600
        context.note("half way")
        return {"y": 2}

    rig.workflow(rig.step("one", [{"x": (1, 2)}]), Step(name="two", do=second))
    run = rig.go(input={"k": "v"})
    assert run.state is RunState.DONE
    assert run.finished_at is not None
    assert [step.output for step in rig.journal.steps("a")] == [{"x": [1, 2]}, {"y": 2}]
    assert rig.events == [
        ("started", "", ""),
        ("step", "one", ""),
        ("step", "two", ""),
        ("note", "", "half way"),
        ("done", "", ""),
    ]


def test_an_empty_workflow_is_done_at_once(rig):
    rig.workflow()
    assert rig.go().state is RunState.DONE


def test_starting_again_does_nothing(rig):
    rig.workflow(rig.step("one"))
    engine = rig.engine()
    rig.go(engine=engine)
    rig.go(engine=engine)
    assert rig.did == ["one"]


def test_again_keeps_no_thread_and_uses_no_attempt(rig):
    step = rig.step("one", [Again(0, note="copying"), Again(3600, note="copying 50 %"), None])
    rig.workflow(step)
    engine = rig.engine()
    run = rig.go(engine=engine)
    assert (run.state, run.owner, run.note) == (RunState.READY, "", "copying 50 %")
    assert rig.journal.steps("a")[0].attempts == 0
    assert 3000 < rig.drain(engine) <= 3600
    assert [event for event in rig.events if event[0] == "step"] == [("step", "one", "")]


def test_what_is_not_yet_done_is_asked_again_and_is_no_failure(rig):
    later = [NotYetError("clones", after=0)] * 9  # more often than a step may fail
    rig.workflow(rig.step("one", [*later, NotYetError("clones 50 %", after=3600), None]))
    run = rig.go()
    assert (run.state, run.note, run.error) == (RunState.READY, "clones 50 %", "")
    assert rig.journal.steps("a")[0].attempts == 0
    assert rig.did == ["one"] * 10


def test_an_undo_may_not_be_done_yet_either(rig):
    later = NotYetError("still cloning", after=0)
    rig.workflow(rig.step("one", [RejectedError("no")], undo=[later, None]))
    assert rig.go().state is RunState.FAILED
    assert rig.did == ["one", "-one", "-one"]


def test_elapsed_spans_pauses(rig):
    seen, began = [], time.monotonic()

    def do(context):
        seen.append(context.elapsed)
        return Again(0) if len(seen) == 1 or context.elapsed < 0.05 else None

    rig.workflow(Step(name="one", do=do))
    assert rig.go().state is RunState.DONE
    assert len(seen) > 1
    # The step began after the test; the database's clock may be a little ahead of ours.
    assert seen[-1] <= time.monotonic() - began + 1.0


def test_transient_errors_are_tried_again_with_backoff(rig):
    lost = TransientError("no answer", hint="wait")
    rig.workflow(rig.step("one", [lost, lost, None], retry=AT_ONCE))
    run = rig.go()
    assert run.state is RunState.DONE
    assert rig.did == ["one"] * 3
    notes = [text for kind, _, text in rig.events if kind == "note"]
    assert notes[0] == "one: try 1 of 3 failed: no answer (wait)"


@pytest.mark.parametrize("kind", [StoreAwayError, StoreBrokenError])
def test_a_database_that_cannot_be_used_is_no_failure_of_the_step(rig, monkeypatch, kind):
    monkeypatch.setattr(carry, "LATER", 0.0)
    full = kind("the disk is full")
    once = Backoff(attempts=1)
    rig.workflow(
        rig.step("one", [full, full, None], undo=[full, None], retry=once),
        rig.step("two", [full, RejectedError("no")], undo=None, retry=once),
    )
    run = rig.go()
    assert (run.state, run.error) == (RunState.FAILED, "no")
    assert rig.did == ["one"] * 3 + ["two"] * 2 + ["-one"] * 2
    rig.workflow(rig.step("last", [full, None], retry=once, on_failure=OnFailure.STOP))
    assert rig.go("b").state is RunState.DONE


def test_the_backoff_doubles_up_to_the_longest(rig):
    backoff = Backoff(first=1.0, longest=5.0)
    assert [pause(backoff, tries, lambda: 1.0) for tries in (1, 2, 3, 4, 99)] == [1, 2, 4, 5, 5]
    assert pause(backoff, 1, lambda: 0.0) == 0.5


def test_a_transient_error_is_final_in_the_end_and_all_is_undone(rig):
    rig.workflow(
        rig.step("one", [{"x": 1}]),
        rig.step("look", undo=None),
        rig.step("two", [TransientError("no answer")], retry=AT_ONCE),
        rig.step("three"),
    )
    run = rig.go()
    assert (run.state, run.error) == (RunState.FAILED, "no answer [tried 3 times]")
    assert rig.did == ["one", "look", "two", "two", "two", "-two", "-one"]
    assert rig.states() == {"one": "undone", "look": "done", "two": "undone"}
    assert rig.journal.steps("a")[2].error == "no answer [tried 3 times]"
    kinds = [kind for kind, _, _ in rig.events if kind != "note"]
    assert kinds == ["started", "step", "step", "step", "undoing", "undoing", "failed"]


def test_a_rejection_is_final_at_once(rig):
    rig.workflow(rig.step("one", [RejectedError("no such template", hint="make it")]))
    run = rig.go()
    assert (run.state, run.error) == (RunState.FAILED, "no such template (make it)")
    assert rig.did == ["one", "-one"]


def test_an_unexpected_exception_keeps_its_traceback_for_the_curious(rig):
    rig.workflow(rig.step("one", [KeyError("size")]))
    run = rig.go()
    assert (run.state, run.error) == (RunState.FAILED, "KeyError: 'size'")
    error = rig.journal.steps("a")[0].error
    assert "Traceback" in error
    assert "test_execute.py" in error


@pytest.mark.parametrize("answer", [{"x": object()}, ["x"], {"x": math.nan}, 3])
def test_outputs_that_are_not_json_objects_are_refused(rig, answer):
    rig.workflow(rig.step("one", [answer]))
    run = rig.go()
    assert run.state is RunState.FAILED
    assert "step one of workflow w must return a JSON object" in run.error


def test_a_step_that_stops_leaves_everything_and_is_resumed_with_fresh_attempts(rig):
    lost = TransientError("no answer")
    rig.workflow(
        rig.step("one"),
        rig.step("two", [lost, lost, lost, lost, None], retry=AT_ONCE, on_failure=OnFailure.STOP),
    )
    engine = rig.engine()
    run = rig.go(engine=engine)
    assert (run.state, run.error) == (RunState.STUCK, "no answer [tried 3 times]")
    assert rig.did == ["one", "two", "two", "two"]
    assert engine.settled("a")
    assert engine.resume("a") == ["a"]
    rig.drain(engine)
    assert rig.journal.get("a").state is RunState.DONE
    assert rig.did == ["one", "two", "two", "two", "two", "two"]


def test_a_stuck_error_asks_a_person_whatever_the_table_says(rig):
    rig.workflow(rig.step("one"), rig.step("two", [StuckError("not fenced"), None]))
    engine = rig.engine()
    assert rig.go(engine=engine).state is RunState.STUCK
    assert ("stuck", "", "not fenced") in rig.events
    engine.resume("a")
    rig.drain(engine)
    assert rig.journal.get("a").state is RunState.DONE


def test_a_failing_undo_is_stuck_and_resumed_from_there(rig):
    rig.workflow(
        rig.step("one"),
        rig.step("two", undo=[TransientError("busy")] * 4 + [None], retry=AT_ONCE),
        rig.step("three", [RejectedError("no")]),
    )
    engine = rig.engine()
    run = rig.go(engine=engine)
    assert run.state is RunState.STUCK
    assert run.undoing
    assert run.error == "cannot undo two: busy [tried 3 times]; it failed: no"
    assert rig.did == ["one", "two", "three", "-three", "-two", "-two", "-two"]
    engine.resume("a")
    rig.drain(engine)
    assert rig.journal.get("a").state is RunState.FAILED
    assert rig.did[-3:] == ["-two", "-two", "-one"]


def test_an_undo_may_look_again_later(rig):
    rig.workflow(rig.step("one", [RejectedError("no")], undo=[Again(0), None]))
    assert rig.go().state is RunState.FAILED
    assert rig.did == ["one", "-one", "-one"]


def test_an_unknown_workflow_is_stuck(rig):
    run = rig.go()
    assert run.state is RunState.STUCK
    assert "no workflow called w" in run.error
    assert rig.events[-1][0] == "stuck"


def test_a_wrong_slot_table_is_stuck_rather_than_looping(rig):
    rig.workflow(rig.step("one", slot=lambda run: run.input["site"]))
    run = rig.go()
    assert run.state is RunState.STUCK
    assert "slot of step one: KeyError" in run.error


def test_slots_are_kept_over_pauses_and_given_on(rig):
    rig.workflow(rig.step("one", [Again(3600), None], slot=lambda _run: "clone"))
    engine = rig.engine()
    assert rig.go("a", engine).note == ""
    run = rig.go("b", engine)
    assert (run.state, run.note) == (RunState.READY, "waits for slot clone")
    assert ("waiting", "one", "waits for slot clone") in rig.events
    hurry(rig, "a")
    rig.drain(engine)
    assert [rig.journal.get(key).state for key in "ab"] == [RunState.DONE] * 2


def hurry(rig, key: str) -> None:
    rig.database.write(
        lambda c: c.exec_driver_sql("UPDATE run SET due_at = 0 WHERE id = ?", (key,))
    )


def test_two_steps_may_share_a_slot_or_change_it(rig):
    def slot(name):
        return lambda _run: name

    rig.workflow(
        rig.step("one", slot=slot("x")),
        rig.step("two", slot=slot("x")),
        rig.step("three", slot=slot("y")),
        rig.step("four", [RejectedError("no")], slot=slot("z")),
    )
    assert rig.go().state is RunState.FAILED
    left = rig.database.read(lambda c: c.exec_driver_sql("SELECT * FROM slot_use").all())
    assert left == []


def test_a_watcher_that_stumbles_stops_nothing(rig, caplog):
    rig.workflow(rig.step("one"))
    engine = Engine(rig.journal, rig.workflows, None, owner="me", emit=lambda _e: 1 / 0)
    rig.engines.append(engine)
    assert rig.go(engine=engine).state is RunState.DONE
    assert "a watcher failed" in caplog.text


def test_notes_reach_the_journal_at_most_twice_a_second(rig, monkeypatch):
    written = []
    now = [0.0]

    def do(context):
        for text in ("a", "b", "c", "d"):
            context.note(text)
            now[0] += 0.2
        return Again(3600)

    rig.workflow(Step(name="one", do=do))
    engine = rig.engine(clock=lambda: now[0])
    monkeypatch.setattr(rig.journal, "note", lambda _run, text: written.append(text))
    run = rig.go(engine=engine)
    assert written == ["a", "d"]
    assert run.note == "d"
    assert [text for kind, _, text in rig.events if kind == "note"] == ["a", "b", "c", "d"]


def test_a_lost_run_is_dropped_silently(rig):
    def steal(context):
        rig.journal.expire(["me"])
        assert rig.journal.claim("thief", 3600.0).run.id == context.run.id

    rig.workflow(Step(name="one", do=steal), rig.step("two"))
    run = rig.go()
    assert (run.state, run.owner, rig.did) == (RunState.RUNNING, "thief", [])
    assert rig.states() == {"one": "running"}


def test_a_run_lost_while_undoing_is_dropped_silently(rig):
    def undo(context):
        rig.engines[0].abandon("a")
        context.spawn([])
        context.spawn([NewRun(id="a.1", workflow="w", subject="s", parent="a")])

    def do(_context):
        raise RejectedError("no")

    rig.workflow(Step(name="one", do=do, undo=undo))
    assert rig.go().state is RunState.ABANDONED
    assert rig.journal.get("a.1") is None


def test_a_stopping_engine_hands_back_while_undoing(rig):
    engine = rig.engine()

    def do(_context):
        engine.stop()
        raise RejectedError("no")

    rig.workflow(rig.step("zero"), Step(name="one", do=do, undo=lambda _context: None))
    engine.start([NewRun(id="a", workflow="w", subject="s")])
    assert engine.work() is True
    run = rig.journal.get("a")
    assert (run.state, run.undoing, run.error) == (RunState.READY, True, "no")
    rig.drain(rig.engine("other"))
    assert rig.journal.get("a").state is RunState.FAILED
    assert rig.did == ["zero", "-zero"]


def test_a_lost_run_cannot_spawn(rig):
    def steal(context):
        rig.engines[0].abandon(context.run.id)
        context.spawn([NewRun(id="a.1", workflow="w", subject="s", parent="a")])

    rig.workflow(Step(name="one", do=steal))
    assert rig.go().state is RunState.ABANDONED
    assert rig.journal.get("a.1") is None


def test_heartbeats_keep_the_lease_of_a_long_step(rig):
    """The lease is far shorter than the step, and yet nobody else gets the run."""
    beats = threading.Event()
    count = [0]
    renew = rig.journal.heartbeat

    def counted(*args):
        lost = renew(*args)
        count[0] += 1
        if count[0] >= 4:
            beats.set()
        return lost

    rig.journal.heartbeat = counted

    def do(_context):
        assert beats.wait(60)

    rig.workflow(Step(name="one", do=do))
    run = rig.go(engine=rig.engine(lease=1.5))
    assert (run.state, run.epoch) == (RunState.DONE, 1)


def test_an_interrupted_engine_hands_its_run_back(rig):
    def interrupt(_context):
        raise KeyboardInterrupt

    rig.workflow(Step(name="one", do=interrupt))
    engine = rig.engine()
    with pytest.raises(KeyboardInterrupt):
        rig.go(engine=engine)
    run = rig.journal.get("a")
    assert (run.state, run.owner) == (RunState.READY, "")
    assert rig.journal.next_due() <= 0


def test_a_stopping_engine_finishes_the_step_and_hands_the_run_back(rig):
    engine = rig.engine()
    rig.workflow(
        Step(name="one", do=lambda _context: engine.stop()),
        rig.step("two"),
    )
    engine.start([NewRun(id="a", workflow="w", subject="s")])
    assert engine.work() is True
    assert engine.work() == math.inf
    assert rig.states() == {"one": "done"}
    assert rig.journal.get("a").state is RunState.READY
    rig.drain(rig.engine("other"))
    assert rig.did == ["two"]


def test_an_engine_can_keep_to_its_own_runs(rig):
    rig.workflow(rig.step("one"))
    rig.engine("other").start([NewRun(id="a", workflow="w", subject="s")])
    mine = rig.engine("mine", own_only=True)
    assert mine.work() == math.inf
    rig.go("b", mine)
    assert rig.journal.get("a").state is RunState.READY
    assert mine.resume("a") == []
    rig.drain(mine)
    assert rig.journal.get("a").state is RunState.DONE


def test_a_name_is_watched_over_while_its_engine_lives(rig):
    rig.workflow(rig.step("one", [Again(3600)]))
    first, second = rig.engine("first"), rig.engine("second")
    rig.go("a", first, holds="stack:x")
    with pytest.raises(HeldError):
        second.supersede("stack:x")
    with pytest.raises(HeldError):
        second.start([NewRun(id="b", workflow="w", subject="s", holds="stack:x")])
    first.close()
    assert second.supersede("stack:x") == ["a"]


KILLED = """
import os, signal, sys
from essaim.engine.owner import this_owner
from essaim.model.runs import NewRun
from essaim.store.database import open_database
from essaim.store.journal import SqlJournal
journal = SqlJournal(open_database(sys.argv[1]))
journal.add([NewRun(id="a", workflow="w", subject="s", holds="x")], owner=this_owner(), lease=3600)
journal.claim(this_owner(), 3600.0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_leases_of_a_killed_process_need_not_run_out(rig):
    rig.workflow(rig.step("one"))
    url = rig.database.engine.url.render_as_string()
    killed = subprocess.run([sys.executable, "-c", KILLED, url], check=False, env=os.environ)
    assert killed.returncode == -9
    engine = rig.engine(this_owner())
    assert engine.work() > 3000
    assert engine.release_dead() == 1
    rig.drain(engine)
    assert rig.journal.get("a").state is RunState.DONE


def test_abandoning_goes_through_the_engine(rig):
    rig.workflow(rig.step("one", [Again(3600)]))
    engine = rig.engine()
    rig.go("p", engine)
    engine.start([NewRun(id="p.1", workflow="w", subject="s", parent="p")])
    assert engine.abandon("p", with_children=False) == ["p"]
    assert engine.abandon("p") == ["p.1"]
    assert engine.settled("nobody")


def test_a_step_is_few_statements(rig):
    """The pace of an engine is the number of its statements: begin, guard, mark, insert, commit."""
    rig.workflow(*(rig.step(f"s{number}") for number in range(20)))
    engine = rig.engine()
    engine.start([NewRun(id="a", workflow="w", subject="s")])
    seen = []
    sa.event.listen(
        rig.database.engine, "before_cursor_execute", lambda _c, _d, text, *_rest: seen.append(text)
    )
    assert engine.work() is True
    assert rig.journal.get("a").state is RunState.DONE
    assert len(seen) <= 20 * 4 + 10
    assert all(step.state is StepState.DONE for step in rig.journal.steps("a"))
