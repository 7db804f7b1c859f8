"""What the tests of the deployment read and run."""

from __future__ import annotations

from pathlib import Path

REPO = Path(__file__).parents[2]
DEPLOY = REPO / "deploy"

#: Every setting that compose.yaml must be given.
SETTINGS = {
    "DATABASE_PASSWORD": "secret",
    "BROKER_PASSWORD": "secret",
    "ESSAIM_SITE": "https://lab.test",
    "ESSAIM_PUBLIC_URL": "https://lab.test",
    "ESSAIM_PUBLIC_GATEWAY": "lab.test:2222",
}
