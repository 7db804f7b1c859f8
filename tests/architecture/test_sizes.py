"""Small files by rule."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_no_module_outgrows_its_size(path):
    most = 300 if "drivers" in path.parts else 400
    assert len(path.read_text().splitlines()) <= most
