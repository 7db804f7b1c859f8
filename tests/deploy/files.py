"""What the tests of the deployment read and run."""

from __future__ import annotations

from pathlib import Path

REPO = Path(__file__).parents[2]
DEPLOY = REPO / "deploy"

#: Every setting that compose.yaml must be given.
SETTINGS = {
    "DATABASE_PASSWORD": "secret",
    "BROKER_PASSWORD": "secret-of-the-broker",
    "BASE": f"python:3.12-slim@sha256:{'0' * 64}",
    "CADDY_IMAGE": f"caddy:2@sha256:{'1' * 64}",
    "MARIADB_IMAGE": f"mariadb:10.11@sha256:{'2' * 64}",
    "REDIS_IMAGE": f"redis:7@sha256:{'3' * 64}",
    "ESSAIM_SITE": "https://lab.test",
    "ESSAIM_PUBLIC_URL": "https://lab.test",
    "ESSAIM_PUBLIC_GATEWAY": "lab.test:2222",
}
