"""The first release, unpacked: what an upgrade begins with."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

WHEEL = Path(__file__).with_name("essaim-0.1.0-py3-none-any.whl")
SHA256 = "b0de7187b6641908f3a1d7fb7436d412ef082d7afc87cc716730eb3402911cfe"
SCHEMA = "0003"


def unpack(folder: Path) -> Path:
    """Unpack it, if it is what it was; return what belongs on Python's path."""
    found = hashlib.sha256(WHEEL.read_bytes()).hexdigest()
    assert found == SHA256, f"{WHEEL} is not the first release: {found}"
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(folder)
    return folder
