"""`pveum` as a node has it, for a simulated cluster: typed lines become requests of root.

Nothing here can run the real program.  Commands and the names of their parameters are those of
PVE/CLI/pveum.pm; a real shell reads the lines, the simulator's own API does what they say.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

_COMMANDS = {
    ("user", "add"): ("POST", "/access/users", ["userid"]),
    ("user", "token", "add"): ("POST", "/access/users/{}/token/{}", []),
    ("user", "token", "modify"): ("PUT", "/access/users/{}/token/{}", []),
    ("acl", "modify"): ("PUT", "/access/acl", ["path"]),
    ("pool", "add"): ("POST", "/pools", ["poolid"]),
    ("pool", "modify"): ("PUT", "/pools/{}", []),
}
#: Writes down its words, one in each line, and an empty line.
_PROGRAM = """#!/bin/sh
{ for word in "$@"; do printf '%s\\n' "$word"; done; echo; } >>"${0%/*}/typed"
"""


class Node:
    """A node of a simulated cluster at which root types: `pveum` is in the path of a real shell."""

    def __init__(self, place: Path, sim: Any) -> None:
        self._place, self._sim = place, sim
        place.mkdir(exist_ok=True)
        (place / "pveum").write_text(_PROGRAM)
        (place / "pveum").chmod(0o755)

    def type(self, line: str) -> Any:
        """Run a line of a shell; gives what the cluster answered to its last command."""
        typed = self._place / "typed"
        typed.write_text("")
        path = {"PATH": f"{self._place}:/usr/bin:/bin"}
        subprocess.run(["/bin/sh", "-euc", line], env=path, check=True)
        commands = typed.read_text().split("\n\n")[:-1]
        assert commands, f"nothing was asked of pveum by {line}"
        return [self._run(command.split("\n")) for command in commands][-1]

    def _run(self, words: list[str]) -> Any:
        for name, (method, path, named) in _COMMANDS.items():
            if tuple(words[: len(name)]) == name:
                plain, given = _sorted(words[len(name) :])
                given |= dict(zip(named, plain, strict=bool(named)))
                return self._sim.ask(method, path.format(*plain), **given)
        raise AssertionError(f"pveum has no such command: {shlex.join(words)}")


def _sorted(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Words that stand for themselves, and options with their values."""
    plain: list[str] = []
    given: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word.startswith("--"):
            given[word[2:]] = next(rest)
        else:
            plain.append(word)
    return plain, given
