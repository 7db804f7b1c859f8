"""Manual pages say what `--help` says, and man has nothing to complain about."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from essaim.cli import manual
from essaim_lab import computer


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return manual.write(tmp_path_factory.mktemp("man"))


def shown(page: Path) -> str:
    """A page as `man ./essaim.1` shows it, 80 columns wide."""
    done = subprocess.run(
        [computer.find("man", "man-db"), f"./{page.name}"],
        cwd=page.parent,
        env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANPAGER": "cat"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_every_command_has_a_page(written):
    from typer.main import get_command

    from essaim.cli.app import app

    names = {"essaim.1", *(f"essaim-{name}.1" for name in get_command(app).commands)}
    assert {page.name for page in written} == names


def test_groff_and_mandoc_find_nothing_wrong(written):
    groff, mandoc = computer.find("groff", "groff-base"), computer.find("mandoc", "mandoc")
    for command in ([groff, "-man", "-ww", "-z", "-Tutf8", "-K", "utf8"], [mandoc, "-Tlint"]):
        done = subprocess.run(
            [*command, *map(str, written)], capture_output=True, text=True, check=False
        )
        assert (done.stdout + done.stderr).splitlines() == []


def test_man_shows_the_texts_of_help(written):
    pages = {page.name: page for page in written}
    whole = " ".join(shown(pages["essaim.1"]).split())
    assert "essaim - turn a description into real machines" in whole
    assert "essaim-up(1) Make the machines a stack describes" in whole
    assert "essaim up examples/slurm nodes=4 makes a cluster" in whole
    assert "ESSAIM_HOME" in whole
    one = " ".join(shown(pages["essaim-verify.1"]).split())
    assert "essaim verify [OPTIONS] {STACK} [KEY=VALUE]..." in one
    assert "Exit codes: 0 identical, 1 different" in one
    group = " ".join(shown(pages["essaim-students.1"]).split())
    assert "essaim students schedule" in group
    assert "--stop" in group


def test_no_markup_is_left(written):
    for page in written:
        text = page.read_text()
        assert "[bold]" not in text
        assert "`" not in text, page.name


def test_pages_are_reproducible(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert manual.pages() == manual.pages()
    assert '"2023-11-14"' in manual.pages()["essaim.1"]
