"""Every command that README and the documentation show works, as far as a test can tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from docs.blocks import KINDS, PAGES, REASONS, ROOT, Line, matches, read_page
from docs.shell import shell
from docs.static import faults
from patience import EVERYTHING

NAMES = {page: str(page.relative_to(ROOT)) for page in PAGES}


def runs(line: Line) -> bool:
    return not line.says("needs") and (EVERYTHING or not line.says("takes"))


def has_lines(page: Path) -> bool:
    return any(runs(line) for line in read_page(page))


@pytest.mark.parametrize("page", PAGES, ids=NAMES.get)
def test_what_is_not_run_is_at_least_well_formed(page):
    found = [f"{line}: {fault}" for line in read_page(page) for fault in faults(line.command)]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES.get)
def test_what_cannot_be_run_says_why(page):
    for line in read_page(page):
        for remark in line.remarks:
            assert remark.kind in KINDS, line
            known = {"needs": REASONS, "takes": ("minutes",), "serves": ("until Ctrl-C",)}
            assert remark.text in known.get(remark.kind, (remark.text,)), line


@pytest.mark.root
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="machines of the tests' cache are root's")
@pytest.mark.parametrize("page", list(filter(has_lines, PAGES)), ids=NAMES.get)
def test_the_commands_of_a_page_work_one_after_the_other(page, tmp_path):
    with shell(tmp_path) as typed:
        for line in filter(runs, read_page(page)):
            typed.types(line)


def test_a_wrong_command_is_found():
    wrong = {
        "essaim verify examples/slurm --nodes 2": "No such option",
        "essaim down slurm site=rhodey": "unexpected extra argument",
        "essaim nonsense": "No such command",
        "essaim up examples/slurm nodez=2": "nodez",
        "essaim up examples/nothing": "there is no examples/nothing",
        "essaim students nap promo": "No such command",
        "essaim --prepare nonsense": "prepares no nonsense",
        "essaim rent | essaim nonsense": "No such command",
        "make nonsense": "knows no nonsense",
        "make test NONSENSE=1": "knows no NONSENSE",
        ".venv/bin/python -m essaim_lab.nonsense": "no module",
        "nonsense": "unknown program",
    }
    for command, fault in wrong.items():
        assert fault in "; ".join(faults(command)), command


def test_output_is_compared_as_a_page_shows_it():
    assert matches("a … c   # why", "a b c")
    assert not matches("a … c", "a b d")
    assert matches("key: {x: …}", "key: {x: 1}")
