"""How a fleet is found after its server was killed at a bad moment."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from endtoend.fleet_rig import PATIENCE, Fleet, Tenant
from endtoend.fleet_server import LENDING
from essaim.workflows.table import WORKFLOWS
from patience import EVERYTHING


def moments(workflow: str) -> list[tuple[str, str]]:
    """Just before or just after every step there is, in turn; both in `make test-all`."""
    steps = [step.name for step in WORKFLOWS[workflow].steps]
    sides = ("before", "after")
    return [
        (step, moment)
        for number, step in enumerate(steps)
        for moment in (sides if EVERYTHING else [sides[number % 2]])
    ]


def every_step_of(workflow: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("step", "moment"), moments(workflow))


def in_order(its: Fleet) -> None:
    """Nothing under way, nothing held for nobody, no account that is not an active lease's."""
    deadline = time.monotonic() + PATIENCE
    while wrong := [*undone(its), *disorder(its)]:
        assert time.monotonic() < deadline, wrong
        time.sleep(0.1)


def disorder(its: Fleet) -> Iterator[str]:
    leases = {lease["id"]: lease for lease in its.get("leases?all=true")}
    for name, lease in leases.items():
        if lease["state"] not in ("active", "ended", "failed"):
            yield f"{name} is {lease['state']}"
    active = {name for name, lease in leases.items() if lease["state"] == "active"}
    for machine, node in its.nodes().items():
        holds = {name for name in active if node["id"] in leases[name]["nodes"]}
        if node["lease"] != next(iter(holds), None) or (node["state"] == "held") != bool(holds):
            yield f"{machine} is {node['state']} by {node['lease']}, and it should be by {holds}"
        # A lost one is cleaned when it returns.
        if node["state"] in ("ready", "held") and (found := its.accounts(machine)) != holds:
            yield f"{machine} has {found}, and it should have {holds}"


def undone(its: Fleet) -> Iterator[str]:
    for workflow in LENDING:
        for run in its.runs(workflow=workflow):
            if not run.state.over:
                yield f"{run.id} is {run.state} {run.note} {run.error}"


def dies_and_returns(its: Fleet) -> None:
    its.await_death()
    its.serve()


def opens_nothing(its: Fleet, lease: str, tenant: Tenant) -> None:
    done = its.ssh(lease, tenant.key, "id")
    assert done.returncode != 0
    assert not done.stdout
