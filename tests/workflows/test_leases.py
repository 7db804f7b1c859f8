"""Workflows of leases pass the generic suite on real machines.

R-C2, R-D4: each step twice, failure at each step, kill -9 at each step; no residual access.
"""

from __future__ import annotations

import pytest

from workflows import fleet
from workflows.generic import check_workflow, every_trial

pytestmark = pytest.mark.root


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "name", "part"), every_trial(fleet.LEASES))
def test_nothing_is_doubled_and_nothing_left(name, part, rig, tmp_path):
    check_workflow(fleet.LEASES[name], rig, tmp_path, [part])
