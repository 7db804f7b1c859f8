"""The same topology under other schedulers, beside one another (base of R-A5; R-A3)."""

from __future__ import annotations

import re

import pytest


@pytest.mark.timeout(900)
def test_grid_engine_and_oar_run_a_job_on_all_four_nodes_side_by_side(root):
    root.types("up", "-m", "examples/slurm", "scheduler=gridengine,oar", "nodes=4", within=800)
    everybody = {f"nodes-{k}" for k in range(1, 5)}

    job = "qsub -cwd -sync y -pe spread 4 -b y -o /tmp/out -j y 'cat $PE_HOSTFILE' && cat /tmp/out"
    grid = root.types(
        "run", "gridengine/controller", "--", "su", "-", "student", "-c", f"cd && {job}"
    )
    assert set(re.findall(r"nodes-\d", grid)) == everybody

    oar = root.types("run", "oar/controller", "--", "su", "-", "student", "-c", "oar-everywhere")
    assert set(re.findall(r"nodes-\d", oar)) == everybody
