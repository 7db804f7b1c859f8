"""Workloads and schedulers: every mistake gets one clear message."""

from __future__ import annotations

import pytest

from essaim.config.tree import LIBRARY, Tree
from essaim.config.workloads import (
    FOLDER,
    WAYS,
    Workload,
    digest,
    read_workload,
    scheduler_of,
    split,
)
from essaim.model.errors import InvalidError

GOOD = "jobs: 3\ncommand: sleep 1\n"

ADAPTER = """\
controller: head
node: worker
version: "true"
submit: {array: "true", one: "true", after: "true"}
left: echo 0
cancel: "true"
"""


def problems(call, *arguments) -> list[str]:
    with pytest.raises(InvalidError) as caught:
        call(*arguments)
    return [str(problem) for problem in caught.value.problems]


def test_a_workload_has_defaults_and_is_named_by_its_directory(lab):
    lab.write("workloads/short/workload.yaml", GOOD + "seconds: 500ms\nwithin: 2m\n")
    assert read_workload("workloads/short") == Workload(
        name="short",
        summary="",
        jobs=3,
        cores=1,
        seconds=0.5,
        submit="array",
        command="sleep 1",
        user="",
        within=120.0,
    )
    lab.write("long.yaml", GOOD)
    assert read_workload("long.yaml").name == "long"


def test_arguments_take_the_place_of_what_the_file_says(lab):
    lab.write("w/workload.yaml", GOOD)
    its = read_workload("w", ["workload.jobs=100", "workload.submit=chain", "workload.seconds=0.5"])
    assert (its.jobs, its.submit, its.seconds) == (100, "chain", 0.5)
    assert split(["nodes=2", "workload.jobs=1"]) == (("nodes=2",), ("workload.jobs=1",))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("command: x\n", "w/workload.yaml:1: jobs is missing"),
        ("jobs: 3\n", "w/workload.yaml:1: command is missing"),
        (GOOD + "job: 3\n", "w/workload.yaml:3: unknown key job (did you mean jobs?)"),
        ("jobs: many\ncommand: x\n", "w/workload.yaml:1: jobs must be a whole number, not 'many'"),
        ("command: x\njobs: 0\n", "w/workload.yaml:2: jobs must be 1 or more, not 0"),
        (
            GOOD + "submit: all\n",
            "w/workload.yaml:3: submit must be array, each or chain, not 'all'",
        ),
        ("jobs: 1\ncommand: ' '\n", "w/workload.yaml:2: command must be a shell command, not ' '"),
        (
            GOOD + "within: soon\n",
            "w/workload.yaml:3: within must be a time such as 0.5s, 30s or 2m, not 'soon'",
        ),
        (
            GOOD + "user: o'hara\n",
            'w/workload.yaml:3: user must be the name of an account, not "o\'hara"',
        ),
        (
            GOOD + "user: !secret me\n",
            "w/workload.yaml:3: the secret me cannot stand here: jobs are no place for it",
        ),
    ],
)
def test_mistakes_in_a_workload(lab, text, expected):
    lab.write("w/workload.yaml", text)
    assert expected in problems(read_workload, "w")


def test_mistakes_in_arguments_blame_the_argument(lab):
    lab.write("w/workload.yaml", GOOD)
    assert problems(read_workload, "w", ["workload.jobs=few"]) == [
        "command line, workload.jobs=few: jobs must be a whole number, not 'few'"
    ]
    assert problems(read_workload, "w", ["workload.jbos=4"]) == [
        "command line, workload.jbos=4: unknown key jbos (did you mean jobs?)"
    ]
    assert "it gives no value" in problems(read_workload, "w", ["workload.jobs"])[0]


def test_a_workload_that_is_not_there(lab):
    lab.write("workloads/short/workload.yaml", GOOD)
    assert problems(read_workload, "workloads/shrot") == [
        "there is no workload at workloads/shrot (did you mean workloads/short?)"
    ]
    assert problems(read_workload, "workloads") == [
        "workloads is not a workload: it holds no workload.yaml"
    ]


def test_a_lab_says_how_its_own_scheduler_is_given_jobs(lab):
    lab.write("compare/schedulers/mine.yaml", ADAPTER)
    its = scheduler_of(lab.compose())
    assert (its.name, its.node, its.left) == ("mine", "worker", "echo 0")


def test_mistakes_in_a_scheduler(lab):
    lab.write("compare/schedulers/mine.yaml", ADAPTER.replace("left:", "lfet:"))
    assert problems(scheduler_of, lab.compose()) == [
        "compare/schedulers/mine.yaml:1: left is missing",
        "compare/schedulers/mine.yaml:5: unknown key lfet (did you mean left?)",
    ]


def test_a_stack_without_a_scheduler_or_with_two_cannot_be_compared(lab):
    (said,) = problems(scheduler_of, lab.compose())
    assert "has no scheduler" in said
    assert "slurm-controller" in said
    lab.write("compare/schedulers/one.yaml", ADAPTER)
    lab.write("compare/schedulers/two.yaml", ADAPTER)
    (said,) = problems(scheduler_of, lab.compose())
    assert "has several schedulers: one, two" in said


def test_descriptions_of_schedulers_are_no_group_of_a_stack(lab):
    lab.write("compare/schedulers/mine.yaml", ADAPTER)
    assert Tree("cluster").groups() == ["scheduler", "site", "size"]


def test_the_shipped_workloads_and_schedulers_can_be_read(monkeypatch):
    from essaim.config.compose import compose

    root = LIBRARY.parents[2]
    monkeypatch.chdir(root)
    names = sorted(path.parent.name for path in (root / "workloads").glob("*/workload.yaml"))
    found = [read_workload(f"workloads/{name}") for name in names]
    assert {each.submit for each in found} == set(WAYS)
    shipped = sorted(path.stem for path in (LIBRARY / FOLDER).glob("*.yaml"))
    for name in shipped:
        its = compose("examples/bench", [f"scheduler={name}"])
        assert scheduler_of(its).name == name


def test_a_digest_covers_the_workload_and_how_it_is_submitted(lab):
    lab.write("compare/schedulers/mine.yaml", ADAPTER)
    lab.write("w/workload.yaml", GOOD)
    workload, scheduler = read_workload("w"), scheduler_of(lab.compose())
    first = digest(workload, scheduler, "stack")
    assert first == digest(read_workload("w"), scheduler, "stack")
    others = [
        digest(read_workload("w", ["workload.jobs=4"]), scheduler, "stack"),
        digest(workload, scheduler, "other"),
    ]
    assert first not in others
