"""`./essaim` in a checkout: what it does when something is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOBODY = 65534


@pytest.fixture
def bare():
    """A checkout on a computer with next to nothing, seen by somebody without privileges."""
    # A name nobody else has: another suite may run here, and one that was killed leaves its own.
    place = Path(tempfile.mkdtemp(prefix="essaim-bare-", dir="/tmp"))
    place.chmod(0o755)
    tools = place / "bin"
    tools.mkdir()
    for tool in ("sh", "id", "cmp", "python3"):
        (tools / tool).symlink_to(f"/usr/bin/{tool}")
    for file in ("essaim", "requirements.lock", "requirements-dev.lock"):
        shutil.copy(ROOT / file, place)
    yield place
    shutil.rmtree(place)


def run(place: Path) -> subprocess.CompletedProcess[str]:
    become = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    return subprocess.run(
        ["/bin/sh", str(place / "essaim"), "--version"],
        env={"PATH": str(place / "bin"), "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        **become,
    )


def test_without_root_it_prints_the_line_to_ask_for_and_ends_with_3(bare):
    done = run(bare)
    assert done.returncode == 3, done.stderr
    line = next(line for line in done.stderr.splitlines() if "sudo apt-get install" in line)
    assert {"mmdebstrap", "uidmap", "openssh-client", "util-linux"} <= set(line.split())


def test_nothing_is_made_when_something_is_missing(bare):
    run(bare)
    assert not (bare / ".venv").exists()
