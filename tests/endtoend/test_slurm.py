"""From a bare computer to a SLURM cluster, with and without privileges.

R-A1, R-A3, R-A5, R-A6, R-C1, R-C2.
"""

from __future__ import annotations

import json
import re

import pytest

from endtoend import terminal_stories as stories
from endtoend.traces import traces
from essaim.drivers.sandbox.cgroups import Cgroups
from patience import in_test_all

#: Ends slurmd, and lets the next one die as soon as it has started: what 22.05 does when it is told
#: of a change in the moment it registers.
FRAIL = """
cat >/usr/local/sbin/slurmd <<'END'
#!/bin/bash
(exec -a slurmd /usr/sbin/slurmd "$@") || exit
[ -e /run/died ] && exit
touch /run/died
until pid=$(cat /run/slurmd.pid 2>/dev/null) && [ "$pid" ]; do sleep 0.02; done
kill -KILL "$pid"
END
chmod 0755 /usr/local/sbin/slurmd
pid=$(cat /run/slurmd.pid) && kill "$pid"
while kill -0 "$pid"; do sleep 0.05; done 2>/dev/null
rm -f /run/slurmd.pid
"""


def names(output: str) -> set[str]:
    return set(re.findall(r"^(nodes-\d+|controller)$", output, re.MULTILINE))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "person", [pytest.param("root", marks=in_test_all), "plain"], indirect=True
)
def test_a_cluster_is_raised_grown_shrunk_and_leaves_nothing(person):
    before = traces(person, "slurm")
    up = person.types("up", "examples/slurm", "nodes=4", within=600)
    assert "done in" in up
    four = person.types("run", "slurm/controller", "--", "srun", "-N4", "hostname")
    assert names(four) == {f"nodes-{k}" for k in range(1, 5)}

    _a_batch_job_finds_its_files(person)

    assert "nothing to change" in person.types("up", "examples/slurm", "nodes=4")

    plan = json.loads(person.types("plan", "examples/slurm", "nodes=6", "--json"))
    added = {c["machine"] for c in plan["changes"] if c["verb"] == "raise"}
    changed = {(c["machine"], c["role"]) for c in plan["changes"] if c["action"] == "~"}
    assert added == {"slurm/nodes-5", "slurm/nodes-6"}
    assert changed == {("slurm/controller", "slurm-controller")}
    person.types("up", "examples/slurm", "nodes=6")
    six = person.types("run", "slurm/controller", "--", "srun", "-N6", "hostname")
    assert names(six) == {f"nodes-{k}" for k in range(1, 7)}

    person.types("up", "examples/slurm", "nodes=3", "--yes")
    three = person.types("run", "slurm/controller", "--", "srun", "-N3", "hostname")
    assert names(three) == {f"nodes-{k}" for k in range(1, 4)}
    seen = person.types("run", "slurm/controller", "--", "sinfo", "-h", "-N", "-o", "%N")
    assert names(seen) == {f"nodes-{k}" for k in range(1, 4)}
    drained = person.types("logs", "slurm/controller", "-n", "500")
    assert "drain" in drained

    person.types("run", "slurm/nodes-2", "--", "sh", "-c", FRAIL)
    person.types("up", "examples/slurm", "nodes=3", "--again")
    assert "slurmd has died: started again" in person.types("logs", "slurm/nodes-2", "-n", "500")
    assert names(person.types("run", "slurm/controller", "--", "srun", "-N3", "hostname")) == {
        f"nodes-{k}" for k in range(1, 4)
    }

    _drifts_and_is_mended(person)

    alive = traces(person, "slurm")
    assert len(alive["processes"]) > 4  # four machines and their keeper
    place = person.state / "sandbox" / "slurm"
    offered = Cgroups.find(place, rootless=bool(person.become)).stacks
    assert alive["cgroups"] == sorted(map(str, offered))
    person.types("down", "slurm", "--yes")
    assert traces(person, "slurm") == before


def _a_batch_job_finds_its_files(person):
    """Submitted from a home directory; what it prints is seen on every machine."""
    write = "printf '#!/bin/sh\\ncat words; hostname\\n' >job.sh; echo from $USER >words"
    for who, home in (("student", "/home/student"), ("root", "/root")):
        submit = f"cd {home}; USER={who}; {write}; sbatch --wait -w nodes-3 -o said job.sh"
        person.types(
            "run", "slurm/controller", "--", "runuser", "-u", who, "--", "sh", "-c", submit
        )
        for machine in ("controller", "nodes-1", "nodes-3"):
            said = person.types("run", f"slurm/{machine}", "--", "cat", f"{home}/said")
            assert said == f"from {who}\nnodes-3\n"


def _drifts_and_is_mended(person):
    """A daemon that died and a file edited by hand are seen, shown, and put right."""
    person.types("run", "slurm/nodes-1", "--", "pkill", "-x", "slurmd")
    edit = ["sed", "-i", "s/^KillWait=5/KillWait=50/", "/etc/slurm/slurm.conf"]
    person.types("run", "slurm/controller", "--", *edit)
    said = person.types("plan", "examples/slurm", "nodes=3", "--deep")
    assert "slurmd would run again; not ready: exit 1" in said
    assert re.search(r"^ +-KillWait=50\n +\+KillWait=5$", said, re.MULTILINE), said
    mended = person.types("up", "examples/slurm", "nodes=3", "--deep")
    assert "2 machines to configure" in mended
    assert "done in" in mended
    assert "nothing to change" in person.types("up", "examples/slurm", "nodes=3", "--deep")


@in_test_all
@pytest.mark.timeout(1800)
def test_without_privileges_a_terminal_is_as_usable_in_every_phase(plain):
    """Here, because the image and the environment of a plain user are there already."""
    plain.types("image", "build", "slurm", within=600)
    (rootfs,) = (plain.home / ".cache/essaim/images").glob("*-rootless/rootfs")
    lab = stories.Lab(plain, plain.home / "lab", image="slurm")
    stories.composing(lab)
    stories.building(lab)
    with stories.late_sshd(rootfs):
        stories.creating(lab)
    stories.configuring(lab)
    stories.failing(lab)
    stories.removing(lab)
