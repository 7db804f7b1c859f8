"""Files go to a cluster and back, by Essaim and by programs that know nothing of it."""

from __future__ import annotations

import os
import subprocess

import pytest

import patience
from essaim_lab import computer

JOB = """#!/bin/sh
#SBATCH --nodelist=nodes-1 --output=/root/result.txt
echo computed on $(hostname)
"""


@pytest.fixture(params=["root", pytest.param("plain", marks=patience.in_test_all)])
def person(request):
    return request.getfixturevalue(request.param)


class Shell:
    """Types what is not Essaim's, somewhere else than in the checkout."""

    def __init__(self, person):
        self.person = person
        self.work = person.home / "some work"
        self.does("mkdir", str(self.work), cwd="/")
        # ssh reads the configuration of the account, whatever HOME says.
        config = person.home / ".ssh" / "config"
        self.options = [] if person.become else ["-F", str(config)]

    def does(self, *words, stdin=None, cwd=None):
        done = subprocess.run(
            [*self.person.become, *words],
            cwd=cwd or self.work,
            env=self.person.env,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode("latin-1")

    def essaim(self, *words, stdin=None):
        return self.does(*self.person.launcher, *words, stdin=stdin)


@pytest.mark.timeout(900)
def test_a_job_goes_to_a_cluster_and_its_result_comes_back(person):
    computer.need({"rsync": "rsync", "scp": "openssh-client"})
    person.types("up", "examples/slurm", "nodes=2", "--yes", within=600)
    shell = Shell(person)
    shell.does("tee", "job.sh", stdin=JOB.encode())
    person.types("ssh-config", "--install")

    shell.essaim("cp", "job.sh", "slurm/controller:")
    shell.essaim("run", "slurm/controller", "--", "sbatch", "--wait", "job.sh")
    shell.essaim("cp", "slurm/nodes-1:result.txt", ".")
    assert shell.does("cat", "result.txt") == "computed on nodes-1\n"

    shell.does("scp", "-q", *shell.options, "job.sh", "slurm.controller:by-scp.sh")
    rsync = ["rsync", "-a", "-e", " ".join(["ssh", *shell.options])]
    shell.does(*rsync, "job.sh", "slurm.controller:by-rsync.sh")
    for name in ("by-scp.sh", "by-rsync.sh"):
        shell.essaim("run", "slurm/nodes-1", "--", "rm", "result.txt")
        shell.does("ssh", *shell.options, "slurm.controller", f"sbatch --wait {name}")
        shell.does(*rsync, "slurm.nodes-1:result.txt", name)
        assert shell.does("cat", name) == "computed on nodes-1\n"
    shell.does(
        "sftp", "-q", *shell.options, "-b", "-", "slurm.nodes-1", stdin=b"get result.txt by-sftp\n"
    )
    assert shell.does("cat", "by-sftp") == "computed on nodes-1\n"

    # What is piped in reaches the command; on several machines each gets it.
    assert shell.essaim("run", "slurm/controller", "--", "cat", stdin=b"\xff data") == "\xff data"
    lines = shell.essaim("run", "slurm/nodes", "--", "wc -c | tr -d ' '", stdin=b"data\n")
    assert sorted(lines.splitlines()) == ["slurm/nodes-1: 5", "slurm/nodes-2: 5"]
    assert shell.essaim("run", "slurm/controller", "--", "echo", "a  b", "$HOME") == "a  b $HOME\n"

    # The names follow what `up` and `down` do.
    config = person.state / "client" / "ssh_config.d" / "stacks.conf"
    assert "Host slurm.nodes-2\n" in config.read_text()
    person.types("up", "examples/slurm", "nodes=1", "--yes")
    assert "Host slurm.nodes-2\n" not in config.read_text()
    person.types("down", "slurm", "--yes")
    assert config.read_text() == ""
    person.types("ssh-config", "--uninstall")
    assert not os.listdir(person.home / ".ssh") or not (person.home / ".ssh/config").read_text()
