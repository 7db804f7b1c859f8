"""The script that restarts slurmctld, beside programs of the test that answer in its place."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import essaim

SCRIPT = Path(essaim.__file__).parent / "library/roles/slurm-controller/restart-slurmctld"
#: `pgrep` finds the daemon if the first line of `found` says so; each call takes one, but the last.
FAKES = {
    "pgrep": "head -1 found | grep -q yes; found=$?; sed -i '1{$!d}' found; exit $found",
    "scontrol": '[ "$1" != ping ] || [ ! -e asked ] || echo UP; touch asked',
    "slurmctld": ":",
    "sinfo": ":",
    "tail": "echo the log",
}


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (["no", "no", "no", "yes"], 0),  # as while it leaves its parent
        (["no"], 1),
    ],
    ids=["not listed for a moment", "dead"],
)
def test_only_a_daemon_that_stays_away_counts_as_dead(tmp_path, found, code):
    for name, script in FAKES.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "found").write_text("".join(f"{line}\n" for line in found))
    done = subprocess.run(
        ["sh", str(SCRIPT)],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "the log\n" if code else "")
