"""Private keys as they are on disk now: whoever logs in uses a new one without being restarted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

#: File, and what changes when another takes its place.
_Seen = tuple["Path", int, int]


class PrivateKeys:
    """Reads keys from files, and again only when these have changed."""

    def __init__(self, paths: Callable[[], Sequence[Path]]) -> None:
        self._paths = paths
        self._seen: list[_Seen] = []
        self._keys: list[asyncssh.SSHKey] = []

    def read(self) -> Sequence[asyncssh.SSHKey]:
        """Give the keys; when one vanishes meanwhile, as they were."""
        try:
            seen = [_look(path) for path in self._paths()]
            if seen != self._seen:
                self._keys = [asyncssh.read_private_key(path) for path, *_ in seen]
                self._seen = seen
        except FileNotFoundError:
            if not self._keys:
                raise
        return self._keys


def _look(path: Path) -> _Seen:
    found = path.stat()
    return path, found.st_ino, found.st_mtime_ns
