"""Workflows on one machine pass the generic suite with real machines, on every database.

R-C2: each step twice, failure at each step, kill -9 at each step.
"""

from __future__ import annotations

import pytest

from essaim.workflows.table import WORKFLOWS
from workflows import sandbox
from workflows.generic import check_workflow


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sandbox.MACHINES)
def test_nothing_is_doubled_and_nothing_left(name, kind, new_database, tmp_path):
    sandbox.ready()
    check_workflow(sandbox.MACHINES[name], new_database(kind), tmp_path)


def test_every_workflow_is_tried():
    tried = {name.partition(",")[0] for name in (*sandbox.MACHINES, *sandbox.STACKS)}
    # `build` is tried in tests/images, which interrupts real builds; `gate` does nothing; the
    # fleet's are carried end to end by tests/endtoend/test_demo.py.
    elsewhere = {"build", "gate", "clean", "migrate", "release", "rent"}
    assert tried | elsewhere == set(WORKFLOWS)
