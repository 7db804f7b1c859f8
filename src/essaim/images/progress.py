"""Turn the chatter of mmdebstrap and apt into a few short lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_NEW = re.compile(r"\d+ upgraded, (\d+) newly installed")
_GET = re.compile(r"Need to get (?:0 B/)?(.+) of archives")
_SETUP = re.compile(r"Setting up (\S+?)(?::\w+)? \(")
_STEPS = {
    "I: running apt-get update": "reading package lists",
    "I: cleaning package lists": "cleaning up",
}
_BATCHES = 2  #: the essential packages, then the others


class Progress:
    """Fed line by line; says something when there is something to say."""

    def __init__(self, say: Callable[[str], None], commands: int) -> None:
        self._say = say
        self._commands = commands
        self._ran = 0
        self._counts: list[int] = []
        self._set_up = 0

    def line(self, line: str) -> None:
        """Take one line of output."""
        if found := _NEW.match(line):
            self._counts.append(int(found[1]))
        elif found := _GET.match(line):
            self._downloading(found[1], ready="0 B/" in line)
        elif found := _SETUP.match(line):
            self._set_up += 1
            self._say(f"installing {found[1]} ({self._set_up}/{self._total})")
        elif line.startswith("I: running --customize-hook in shell: sh -c 'chroot"):
            self._ran += 1
            self._say(f"running command {self._ran}/{self._commands}")
        elif step := next((step for step in _STEPS if line.startswith(step)), None):
            self._say(_STEPS[step])

    def _downloading(self, size: str, *, ready: bool) -> None:
        # apt counts the last batch twice: when it is downloaded and when it is installed.
        if self._counts and len(self._counts) <= _BATCHES:
            verb = "found" if ready else "downloading"
            self._say(f"{verb} {self._counts[-1]} packages ({size})")

    @property
    def _total(self) -> int:
        return max(self._set_up, sum(self._counts[:_BATCHES]))
