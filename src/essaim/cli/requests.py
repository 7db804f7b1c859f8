"""Rents whose answer was never seen: typed again, they are the same request."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from essaim.cli.session import client_home, only_one

#: Seconds after which the same words are meant anew.
MEANT_ANEW = 3600


class Request:
    """One rent: its idempotency key, and whether its answer has come."""

    def __init__(self, key: str, path: Path) -> None:
        self.key = key
        self._path = path

    def answered(self) -> None:
        """From now on the same wish is another one."""
        self._path.unlink(missing_ok=True)


@contextmanager
def request(server: str, person: str, wish: dict[str, Any]) -> Iterator[Request]:
    """Begin a rent, or go on with the same one whose command died before it was answered.

    A file that is locked belongs to a command that lives: two of them at once are two rents.
    """
    folder = client_home() / "requests"
    folder.mkdir(mode=0o700, exist_ok=True)
    import hashlib

    said = json.dumps([server, person, wish], sort_keys=True)
    meaning = hashlib.sha256(said.encode()).hexdigest()[:16]
    with only_one(folder / "lock"):
        # One at a time: a file that was made and is not locked yet is not a dead command's.
        path, file = _find(folder, meaning)
    with file:
        yield Request(path.name, path)


def _find(folder: Path, meaning: str) -> tuple[Path, TextIOWrapper]:
    import secrets

    for path in sorted(folder.glob(f"{meaning}.*")):
        if (file := _own(path)) is not None:
            return path, file
    path = folder / f"{meaning}.{secrets.token_hex(16)}"
    file = path.open("w", encoding="utf-8")
    fcntl.flock(file, fcntl.LOCK_EX)
    return path, file


def _own(path: Path) -> TextIOWrapper | None:
    """A dead command's file, now ours; None when its command lives or it was answered."""
    with suppress(FileNotFoundError):
        if time.time() - path.stat().st_mtime > MEANT_ANEW:
            path.unlink()
            return None
        file = path.open("r+", encoding="utf-8")
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists():
                return file
        file.close()
    return None
