"""The same topology under other schedulers, beside one another (base of R-A5; R-A3)."""

from __future__ import annotations

import pytest

EVERYBODY = {f"nodes-{k}" for k in range(1, 5)}


@pytest.mark.timeout(1200)
def test_grid_engine_and_oar_run_a_job_on_all_four_nodes_side_by_side(root):
    root.types("up", "-m", "examples/slurm", "scheduler=gridengine,oar", "nodes=4", within=1000)

    submit = "cd /tmp && qsub -sync y -cwd -pe spread 4 -b y -o out -j y everywhere hostname"
    student = ("runuser", "-u", "student", "--")
    root.types("run", "gridengine/controller", "--", *student, "sh", "-c", submit)
    # The output is where the job's first machine left it.
    said = root.types("run", "gridengine/nodes", "--", "sh", "-c", "cat /tmp/out || true")
    assert {line.partition(": ")[2] for line in said.splitlines()} >= EVERYBODY

    oar = root.types(
        "run", "oar/controller", "--", *student, "oarrun", "4", "everywhere", "hostname"
    )
    assert EVERYBODY <= set(oar.split())
