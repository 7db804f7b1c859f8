"""What every folder of tests may use: `from databases import …`, `from workflows import …`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

# The tests are not packages: their helpers are found from here, as ruff's `src` setting says.
sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ["databases"]


@pytest.fixture(scope="module", autouse=True)
def nothing_left_open():
    """Let what a file of tests leaves open be said there, and not in whichever test comes later."""
    yield
    gc.collect()
