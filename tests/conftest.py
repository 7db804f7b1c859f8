"""What every folder of tests may use: `from databases import …`, `from workflows import …`."""

from __future__ import annotations

import sys
from pathlib import Path

# The tests are not packages: their helpers are found from here, as ruff's `src` setting says.
sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ["databases"]
