"""Documentation leads to what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
#: A path of the project, perhaps with a star: `tests/store/test_*.py`, `servers/dns.py`.
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.*-]+\.(?:py|md))`")
PLACES = ("", "src", "src/essaim", "src/essaim_lab", "tests")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_every_path_exists(page):
    text = page.read_text()
    links = [link for link in LINK.findall(text) if "://" not in link]
    lost = [link for link in links if not (page.parent / link).exists()]
    lost += [
        path
        for path in PATH.findall(text)
        if not any(list((ROOT / place).glob(path)) for place in PLACES)
    ]
    assert lost == []
