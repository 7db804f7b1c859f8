"""Workflows on one machine pass the generic suite with real machines.

R-C2: each step twice, failure at each step, kill -9 at each step.
"""

from __future__ import annotations

import pytest

from essaim.workflows.table import WORKFLOWS
from workflows import fleet, projects, sandbox, school
from workflows.generic import check_workflow, every_trial


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "name", "part"), every_trial(sandbox.MACHINES))
def test_nothing_is_doubled_and_nothing_left(kind, name, part, new_database, tmp_path):
    sandbox.ready()
    check_workflow(sandbox.MACHINES[name], new_database(kind), tmp_path, [part])


def test_every_workflow_is_tried():
    cases = (*sandbox.MACHINES, *sandbox.STACKS, *fleet.LEASES, *school.SCHOOL, *projects.PROJECTS)
    tried = {name.partition(",")[0] for name in cases}
    # `build` is tried in tests/images, which interrupts real builds; `gate` does nothing.
    assert tried | {"build", "gate"} == set(WORKFLOWS)
