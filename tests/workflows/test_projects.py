"""The workflows of projects pass the generic suite, and do what they are for.

R-C2: each step twice, failure at each step, kill -9 at each step.
"""

from __future__ import annotations

import pytest

from essaim.engine.execute import Engine
from essaim.engine.owner import this_owner
from essaim.model.runs import NewRun, RunState
from essaim.store.database import open_database
from essaim.store.journal import SqlJournal
from essaim.workflows.table import WORKFLOWS
from essaim_lab.simulators.awx import Simulator
from patience import EVERYTHING
from workflows.generic import check_workflow, every_trial, finish
from workflows.projects import (
    PROJECTS,
    World,
    host_case,
    name_case,
    play_case,
    rehost_case,
    unhost_case,
)

#: The others are made of the same steps: that they are killed is left to `make test-all`.
KILLED = ("host",)
TRIALS = [
    trial
    for trial in every_trial(PROJECTS)
    if EVERYTHING or trial[2] != "kills" or trial[1] in KILLED
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "name", "part"), TRIALS)
def test_nothing_is_doubled_and_nothing_left(kind, name, part, new_database, tmp_path):
    check_workflow(PROJECTS[name], new_database(kind), tmp_path, [part])


@pytest.fixture
def carry(tmp_path):
    """Carries out a case, and gives what is then seen and how the run ended."""
    cases = []

    def run(make_case, prepare=lambda _site: None):
        case = make_case(tmp_path)
        cases.append(case)
        prepare(tmp_path / "site")
        journal = SqlJournal(open_database(f"sqlite:///{tmp_path}/tools.db"))
        flow = case.workflow
        engine = Engine(journal, {flow.name: flow}, case.tools, owner=this_owner())
        engine.start([NewRun(id="run", workflow=flow.name, subject="it", input=case.input)])
        finish(engine, journal, "run")
        engine.close()
        return case.seen(), journal.get("run")

    yield run
    for case in cases:
        case.clean()


def test_a_machine_is_made_named_and_started(carry):
    seen, run = carry(host_case)
    assert run.state is RunState.DONE
    assert seen["machines"]["profan/cloud"]["power"] == "on"
    assert seen["names"] == {"cloud.example.org": "10.7.0.10"}
    assert list(seen["records"]) == ["profan/cloud"]


def test_a_name_that_is_somebody_elses_undoes_the_machine(carry):
    def taken(site):
        (site / "names.json").write_text('{"cloud.example.org": "10.9.9.9"}')

    seen, run = carry(host_case, taken)
    assert run.state is RunState.FAILED
    assert "belongs to 10.9.9.9" in run.error
    assert seen["machines"] == {}
    assert seen["records"] == {}
    assert seen["names"] == {"cloud.example.org": "10.9.9.9"}


def test_a_machine_made_anew_elsewhere_leaves_its_old_name(carry):
    seen, run = carry(rehost_case)
    assert run.state is RunState.DONE
    assert seen["machines"]["profan/cloud"]["address"] == "10.7.0.10"
    assert seen["names"] == {"cloud.example.org": "10.7.0.10"}


def test_a_machine_is_renamed_without_being_touched(carry):
    seen, run = carry(name_case)
    assert run.state is RunState.DONE
    assert seen["machines"]["profan/cloud"]["disk"] == "new"
    assert seen["names"] == {"cloud.example.org": "10.7.0.10"}


def test_what_leaves_takes_the_name_it_was_made_with(carry):
    seen, _run = carry(unhost_case)
    assert (seen["machines"], seen["names"], seen["records"]) == ({}, {}, {})


def test_a_play_is_given_its_variables_and_remembered(carry):
    seen, run = carry(play_case)
    assert run.state is RunState.DONE
    assert seen["played"] == ["profan", ["cloud.example.org"], {"port": 22}]
    assert seen["applied"] == [("profan/cloud", "playbook")]


def test_simulated_awx_plays_it_instead_and_its_tasks_are_in_our_log(carry, monkeypatch):
    with Simulator() as awx:
        monkeypatch.setenv("AWX_TOKEN", awx.token)
        awx.inventory("essaim")
        awx.template("site")
        its = {"url": awx.url, "ca": str(awx.ca), "token": {"env": "AWX_TOKEN"}}
        logs = []

        def case(place):
            world = World(place, {**its, "inventory": "essaim"})
            world.once(lambda world: world.made(world.machine))
            logs.append(world.tools.logs)
            return world.case(WORKFLOWS["play"])

        seen, run = carry(case)
        assert run.state is RunState.DONE, run.error
        (job,) = awx.jobs.values()
        assert job.given["extra_vars"] == {"port": 22, "essaim_run": "run"}
        assert awx.members("profan") == {"cloud.example.org": "10.7.0.10"}
    assert seen["applied"] == [("profan/cloud", "playbook")]
    kept = [(log.machine, log.command) for log in logs[0].read(run="run", limit=9)]
    assert kept == [
        ("profan/cloud", "playbook site.yml: prepare"),
        ("profan/cloud", "playbook site.yml: install"),
    ]
