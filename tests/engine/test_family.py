"""Parents and children: waiting, failing, being stuck, and going on after a repair."""

from __future__ import annotations

import pytest

from essaim.engine.execute import Engine
from essaim.engine.workflow import OnFailure, Step, Workflow
from essaim.model.errors import RejectedError, StuckError
from essaim.model.runs import Again, NewRun, RunState, child_id
from essaim.store.journal import SqlJournal

STOP = OnFailure.STOP


class Outside:
    """Which children are broken, and what was done."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.done: list[str] = []


def spawn(context) -> None:
    children = context.run.input["children"]
    context.spawn(
        [
            NewRun(
                id=child_id(context.run.id, key),
                workflow=context.run.input["each"],
                subject=key,
                parent=context.run.id,
                waits_for=tuple(child_id(context.run.id, on) for on in waits),
            )
            for key, waits in children.items()
        ]
    )


def join(context) -> Again | None:
    children = context.children()
    if any(run.state in (RunState.READY, RunState.RUNNING) for run in children):
        return Again(3600)
    broken = [run for run in children if run.state in (RunState.STUCK, RunState.FAILED)]
    if broken:
        names = ", ".join(run.subject for run in broken)
        raise StuckError(f"failed: {names}")
    return None


def act(context) -> None:
    if context.run.subject in context.tools.broken:
        raise RejectedError(f"{context.run.subject} is broken")
    context.tools.done.append(context.run.subject)


WORKFLOWS = {
    "parent": Workflow(
        "parent",
        (
            Step(name="spawn", do=spawn, on_failure=STOP),
            Step(name="join", do=join, on_failure=STOP),
        ),
    ),
    "careful": Workflow("careful", (Step(name="act", do=act, on_failure=STOP),)),
    "undoing": Workflow("undoing", (Step(name="act", do=act),)),
}


@pytest.fixture
def outside() -> Outside:
    return Outside()


@pytest.fixture
def journal(database) -> SqlJournal:
    return SqlJournal(database)


@pytest.fixture
def engine(journal, outside):
    made = Engine(journal, WORKFLOWS, outside, owner="me")
    yield made
    made.close()


def drain(engine: Engine) -> None:
    """Work until nothing is due within the hour: every wake-up must have come by itself."""
    while (due := engine.work()) is True or due <= 0.1:
        pass


def start(engine, children, each: str = "careful") -> None:
    given = {"children": children, "each": each}
    engine.start([NewRun(id="p", workflow="parent", subject="all", input=given, holds="stack:x")])


def test_children_run_in_the_order_of_their_waits_and_wake_their_parent(engine, journal, outside):
    start(engine, {"c": ["a", "b"], "a": [], "b": ["a"], "d": ["c"]})
    drain(engine)
    assert journal.get("p").state is RunState.DONE
    assert outside.done == ["a", "b", "c", "d"]


def test_a_stuck_child_wakes_its_parent_and_both_are_resumed(engine, journal, outside):
    outside.broken = {"b"}
    start(engine, {"a": [], "b": ["a"], "c": ["b"], "d": []})
    drain(engine)
    parent = journal.get("p")
    assert (parent.state, parent.error) == (RunState.STUCK, "failed: b")
    assert journal.get("p.c").state is RunState.WAITING
    assert sorted(outside.done) == ["a", "d"]
    outside.broken = set()
    assert sorted(engine.resume("p")) == ["p", "p.b"]
    drain(engine)
    assert journal.get("p").state is RunState.DONE
    assert sorted(outside.done) == ["a", "b", "c", "d"]


def test_resuming_the_child_also_sets_its_parent_going(engine, journal, outside):
    outside.broken = {"a"}
    start(engine, {"a": [], "b": ["a"]})
    drain(engine)
    outside.broken = set()
    engine.resume("p.a")
    drain(engine)
    assert journal.get("p").state is RunState.DONE


def test_resuming_without_a_repair_is_stuck_again(engine, journal, outside):
    outside.broken = {"a"}
    start(engine, {"a": []})
    for _ in range(2):
        drain(engine)
        assert journal.get("p").state is RunState.STUCK
        engine.resume("p")
    drain(engine)
    assert [journal.get(key).state for key in ("p", "p.a")] == [RunState.STUCK] * 2


def test_a_failed_child_is_seen_by_its_parent(engine, journal, outside):
    outside.broken = {"a"}
    start(engine, {"a": [], "b": ["a"]}, each="undoing")
    drain(engine)
    assert journal.get("p.a").state is RunState.FAILED
    assert journal.get("p.b").state is RunState.WAITING
    assert journal.get("p").state is RunState.STUCK
    # What failed is over: only a new goal can replace it.
    assert sorted(engine.supersede("stack:x")) == ["p", "p.b"]


def test_an_abandoned_child_is_seen_by_its_parent(engine, journal):
    start(engine, {"a": [], "b": ["a"]})
    assert engine.work() is True
    engine.abandon("p.a")
    engine.abandon("p.b")
    drain(engine)
    assert journal.get("p").state is RunState.DONE  # this parent only minds failures
