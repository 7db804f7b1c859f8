"""Passwords that were stolen somewhere, as a list that the administrator supplies.

Either a folder of range files, each named by the first five digits of SHA-1 hashes and holding
`SUFFIX:COUNT` lines, or one file of `HASH:COUNT` lines sorted by hash.  Both are what the
k-anonymous range API of Have I Been Pwned and its downloader give.  Nothing is sent anywhere.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, BinaryIO

from essaim.model.errors import SetupError

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = 5
DIGITS = 40  #: of a SHA-1 hash
LONGEST_LINE = 256


class BreachedPasswords:
    """Looks passwords up in a file or folder; SetupError when that cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.exists():
            raise SetupError(
                f"ESSAIM_BREACHED_PASSWORDS={path}: no such file or folder",
                hint="name a folder of range files, or one sorted file of SHA-1 hashes",
            )

    def contains(self, password: str) -> bool:
        """Say whether a password is in the list."""
        # SHA-1 is what such lists are made of; nothing is protected by it.
        wanted = hashlib.sha1(password.encode(), usedforsecurity=False).hexdigest().upper()
        try:
            if self._path.is_dir():
                return self._in_range(wanted)
            with self._path.open("rb") as file:
                return _in_sorted(file, wanted.encode())
        except OSError as error:
            raise SetupError(
                f"the list of breached passwords cannot be read: {error.strerror}",
                hint="see ESSAIM_BREACHED_PASSWORDS",
            ) from error

    def _in_range(self, wanted: str) -> bool:
        prefix, suffix = wanted[:PREFIX], wanted[PREFIX:].encode()
        for name in (prefix, f"{prefix}.txt", prefix.lower(), f"{prefix.lower()}.txt"):
            path = self._path / name
            if path.is_file():
                with path.open("rb") as file:
                    return any(_says(line, suffix) for line in file)
        return False


def _says(line: bytes, wanted: bytes) -> bool:
    """Whether a line names this hash; padding lines count 0."""
    found, _, count = line.strip().partition(b":")
    return found.upper() == wanted and count.strip() != b"0"


def _in_sorted(file: BinaryIO, wanted: bytes) -> bool:
    """Find a hash by bisection: tens of gigabytes cost some forty reads."""
    low, high = 0, file.seek(0, 2)
    # The first line that is not smaller begins in [low, high].
    while low < high:
        middle = (low + high) // 2
        line = _line_after(file, middle)
        if line and line[:DIGITS].upper() < wanted:
            low = middle + 1
        else:
            high = middle
    return _says(_line_after(file, low), wanted)


def _line_after(file: BinaryIO, offset: int) -> bytes:
    """The first line that begins at or after an offset; empty at the end."""
    file.seek(max(0, offset - 1))
    if offset:
        file.readline(LONGEST_LINE)
    return file.readline(LONGEST_LINE)
