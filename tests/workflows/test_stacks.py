"""Workflows on stacks and roles pass the generic suite with real machines.

R-C2: each step twice, failure at each step, kill -9 at each step.
"""

from __future__ import annotations

import pytest

from workflows import sandbox
from workflows.generic import check_workflow, every_trial


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "name", "part"), every_trial(sandbox.STACKS))
def test_nothing_is_doubled_and_nothing_left(kind, name, part, new_database, tmp_path):
    sandbox.ready()
    check_workflow(sandbox.STACKS[name], new_database(kind), tmp_path, [part])
