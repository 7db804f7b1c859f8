"""The life of a rented machine, as `essaim demo` tells it (R-D1, R-D4, R-D5, R-D6, R-D9)."""

from __future__ import annotations

import pytest


@pytest.mark.timeout(900)
def test_every_claim_of_the_demonstration_holds(root):
    said = root.types("demo", "--fast", within=800)
    assert "✗" not in said
    told = said.rpartition("\n\n")[2]
    assert told.count("✓") == 8
