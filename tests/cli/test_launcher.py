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


def lay_out(place: Path, program: str) -> dict[str, str]:
    """A checkout whose environment is there already: its Python says how it was called."""
    venv = place / ".venv/bin"
    venv.mkdir(parents=True)
    (venv / "python").write_text(program)
    (venv / "python").chmod(0o755)
    shutil.copy(ROOT / "essaim", place)
    for lock in ROOT.glob("requirements*.lock"):
        shutil.copy(lock, place)
    shutil.copy(ROOT / "requirements.lock", place / ".venv/.made-from")
    return {"PATH": os.environ["PATH"], "HOME": str(place)}


NAMES = '#!/bin/sh\necho "called $4"\n'  # after -P -c PROGRAM


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("./essaim", "./essaim"),
        ("../checkout/essaim", "../checkout/essaim"),
        ("bin/way", "bin/way"),
    ],
)
def test_it_says_how_it_was_called(tmp_path, called, name):
    place = tmp_path / "checkout"
    env = lay_out(place, NAMES)
    (place / "bin").mkdir()
    (place / "bin/way").symlink_to(place / "essaim")
    done = subprocess.run([called], cwd=place, env=env, capture_output=True, text=True, check=False)
    assert done.stdout == f"called {name}\n", done.stderr


def test_found_by_the_path_it_is_called_by_its_name(tmp_path):
    env = lay_out(tmp_path / "checkout", NAMES)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/essaim").symlink_to(tmp_path / "checkout/essaim")
    env["PATH"] = f"{tmp_path / 'bin'}:{env['PATH']}"
    done = subprocess.run(
        ["sh", "-c", "essaim"], cwd="/", env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "called essaim\n", done.stderr


PIP = """#!/bin/sh
case $* in
*pip*) echo "DEPRECATION: pip says much"; echo "$*" >>"$HOME/pip"; exit ${FAILS-0} ;;
esac
echo started
"""


def test_an_extra_is_installed_from_its_lock_file_once_and_quietly(tmp_path):
    env = lay_out(tmp_path, PIP)
    for _ in range(2):
        done = subprocess.run(
            ["./essaim", "--prepare", "compare"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "DEPRECATION" not in done.stdout + done.stderr
    (line,) = (tmp_path / "pip").read_text().splitlines()
    assert "--require-hashes" in line
    assert line.endswith(f"{tmp_path}/requirements-compare.lock")


def test_what_pip_says_is_shown_when_it_fails(tmp_path):
    env = lay_out(tmp_path, PIP)
    done = subprocess.run(
        ["./essaim", "--prepare", "nix"],
        cwd=tmp_path,
        env={**env, "FAILS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "pip says much" in done.stderr
    assert "requirements-nix.lock" in done.stderr


def test_the_extras_are_locked_with_hashes_and_without_an_index():
    import tomllib

    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in ("compare", "libvirt", "nix"):
        text = (ROOT / f"requirements-{extra}.lock").read_text()
        assert "://" not in text
        assert "--index" not in text
        for package in wanted["optional-dependencies"][extra]:
            assert f"{package.split('>=')[0]}==" in text
