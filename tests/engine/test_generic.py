"""The generic suite holds for a good workflow and catches bad ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from databases import KINDS
from engine import folder
from engine.folder import Folder
from essaim.engine.workflow import OnFailure, Step, Workflow
from essaim.model.runs import NewRun, child_id
from patience import EVERYTHING
from workflows.generic import Case, Suite, check_workflow


def make_case(place: Path) -> Case:
    return folder.make_case(place)


@pytest.mark.parametrize("kind", KINDS if EVERYTHING else ["postgresql"])
def test_a_good_workflow_passes(kind, new_database, tmp_path):
    check_workflow(make_case, new_database(kind), tmp_path, every_moment=True)


def altered(place: Path, name: str, **changes: object) -> Case:
    steps = [
        dataclasses.replace(step, **changes) if step.name == name else step
        for step in folder.RENT.steps
    ]
    world = Folder(place)
    return Case(workflow=Workflow("rent", tuple(steps)), tools=world, seen=world.seen)


def makes_always(context) -> None:
    context.tools.make("lease", context.run.id)


def doubles(place: Path) -> Case:
    return altered(place, "hand_over", do=makes_always)


def forgets(place: Path) -> Case:
    return altered(place, "hand_over", undo=None)


def removes_once(context) -> None:
    found = context.tools.find("lease", context.run.id)
    found[0].unlink()


def undoes_only_once(place: Path) -> Case:
    return altered(place, "hand_over", undo=removes_once)


@pytest.mark.parametrize(
    ("case", "trials", "complaint"),
    [
        (doubles, "twice", "twice: differs"),
        (doubles, "kills", "killed after hand_over: differs"),
        (forgets, "failures", "hand_over fails: something is left"),
        (undoes_only_once, "failures", "hand_over fails, undone twice: stuck"),
        (undoes_only_once, "kills_while_undoing", "killed after undo of hand_over: stuck"),
    ],
)
def test_a_bad_workflow_is_caught(case, trials, complaint, new_database, tmp_path):
    suite = Suite(case, new_database("sqlite"), tmp_path)
    try:
        suite.plainly()
        with pytest.raises(AssertionError, match=complaint):
            getattr(suite, trials)()
    finally:
        suite.close()


def stops(place: Path) -> Case:
    return altered(place, "start", on_failure=OnFailure.STOP)


def test_a_step_that_stops_is_resumed(new_database, tmp_path):
    suite = Suite(stops, new_database("sqlite"), tmp_path)
    try:
        suite.plainly()
        suite.failures()
    finally:
        suite.close()


def spawn(context) -> None:
    one, two = (child_id(context.run.id, key) for key in ("one", "two"))
    new = {"workflow": "rent", "parent": context.run.id}
    context.spawn(
        [
            NewRun(id=two, subject="two", waits_for=(one,), **new),
            NewRun(id=one, subject="one", **new),
        ]
    )


def join(context):
    from essaim.model.runs import Again, RunState

    if all(run.state is RunState.DONE for run in context.children()):
        return None
    return Again(30)


FAMILY = Workflow(
    "family",
    (
        Step(name="spawn", do=spawn, on_failure=OnFailure.STOP),
        Step(name="join", do=join, on_failure=OnFailure.STOP),
    ),
)


def family(place: Path) -> Case:
    world = Folder(place)
    return Case(workflow=FAMILY, tools=world, seen=world.seen, others=(folder.RENT,))


def test_a_parent_with_children_that_wait_for_one_another(kind, new_database, tmp_path):
    suite = Suite(family, new_database(kind), tmp_path)
    try:
        suite.plainly()
        suite.kills()
    finally:
        suite.close()
