"""Keys to sign with for control planes of tests: a folder for each database."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from essaim.bootstrap.signing_keys import make_signing_keys
from essaim.remote.signing_keys import SigningKeys
from essaim.store.database import Database
from essaim.store.settings import Settings


def signing_keys(database: Database) -> Mapping[str, SigningKeys]:
    """The same for all processes of one database."""
    url = database.engine.url
    name = hashlib.sha256(url.render_as_string(hide_password=False).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"essaim-test-keys-{name}"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    settings = Settings(database)
    return make_signing_keys({"access": folder, "inner": folder}, lambda: settings)
