"""A machine that configures itself with the real cloud-init: SLURM's controller and node in one.

R-C3.
"""

from __future__ import annotations

import pytest

from kvm.lab import SITE, only_bases_left
from patience import in_slurm_libvirt

STACK = f"""\
defaults: [{{size: small}}, {{site: {SITE}}}, _self_]
name: own
image: slurm
bootstrap: cloud-init
topology: {{one: {{roles: [base, slurm-controller, slurm-node]}}}}
network: {{cidr: 10.98.0.0/24}}
"""

pytestmark = in_slurm_libvirt


@pytest.mark.timeout(5400)
def test_a_machine_makes_a_cluster_of_itself_and_again_after_a_power_cut(lab):
    where = lab.folder / "own"
    where.mkdir()
    (where / "stack.yaml").write_text(STACK)
    lab.person.types("up", str(where), within=3600)
    job = lab.person.types("run", "own/one", "--", "srun", "hostname", within=900)
    assert "one" in job.split()
    assert "nothing to change" in lab.person.types("up", str(where), within=900)
    # We have looked, and run nothing: the machine did.
    logs = lab.person.types("logs", "own/one", "-n", "500")
    assert "slurm-node/ready" in logs
    assert "slurm-node/slurmd" not in logs

    lab.server.virsh("destroy", "own.one")
    lab.person.types("up", str(where), within=3600)
    told = lab.person.types("run", "own/one", "--", "cat", "/run/essaim-boot/roles", within=900)
    assert [line.split()[0] for line in told.splitlines() if ":" in line] == [
        "names",
        "base",
        "slurm-controller",
        "slurm-node",
    ]
    job = lab.person.types("run", "own/one", "--", "srun", "hostname", within=900)
    assert "one" in job.split()
    assert "slurm-node/slurmd" not in lab.person.types("logs", "own/one", "-n", "500")
    lab.types("down", "own", "--yes")
    only_bases_left(lab.server)
