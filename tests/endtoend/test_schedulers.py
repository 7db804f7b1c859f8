"""The same topology under other schedulers, beside one another (base of R-A5; R-A3)."""

from __future__ import annotations

import pytest

EVERYBODY = {f"nodes-{k}" for k in range(1, 5)}


@pytest.mark.timeout(1200)
def test_grid_engine_and_oar_run_a_job_on_all_four_nodes_side_by_side(root):
    root.types("up", "-m", "examples/slurm", "scheduler=gridengine,oar", "nodes=4", within=1000)

    student = ("runuser", "-l", "student", "-c")
    grid = "qrsh -now no -pe spread 4 everywhere hostname"
    said = root.types("run", "gridengine/controller", "--", *student, grid)
    assert set(said.split()) >= EVERYBODY
    batch = "cd; echo from home >words; qsub -sync y -cwd -b y -j y -o said cat words >/dev/null"
    root.types("run", "gridengine/controller", "--", *student, batch)
    assert root.types("run", "gridengine/nodes-1", "--", *student, "cat said") == "from home\n"

    said = root.types("run", "oar/controller", "--", *student, "oarrun 4 everywhere hostname")
    assert set(said.split()) >= EVERYBODY
    # What a job printed lies where it was submitted, not only on the node it ran on.
    found = root.types("run", "oar/controller", "--", *student, "cat OAR.*.stdout")
    assert set(found.split()) >= EVERYBODY
