"""The cluster of examples/slurm on virtual machines: only its site is another one.

R-A2, R-A5, R-C1.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from kvm.lab import SITE, only_bases_left
from patience import in_slurm_libvirt

EXAMPLE = Path(__file__).parents[2] / "examples" / "slurm"

pytestmark = in_slurm_libvirt


@pytest.mark.timeout(5400)
def test_a_slurm_cluster_of_three_virtual_machines_runs_a_job_on_both_nodes(lab):
    where = lab.folder / "slurm"
    shutil.copytree(EXAMPLE, where)
    said = lab.person.types("up", str(where), f"site={SITE}", "nodes=2", within=3600)
    assert "done in" in said
    assert lab.server.domains() == {
        f"slurm.{name}": "on" for name in ("controller", "nodes-1", "nodes-2")
    }
    job = lab.person.types("run", "slurm/controller", "--", "srun", "-N2", "hostname", within=900)
    assert set(re.findall(r"^nodes-\d+$", job, re.MULTILINE)) == {"nodes-1", "nodes-2"}
    again = lab.person.types("up", str(where), f"site={SITE}", "nodes=2", within=900)
    assert "nothing to change" in again
    lab.types("down", "slurm", "--yes")
    only_bases_left(lab.server)
