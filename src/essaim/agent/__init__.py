"""The agent of a fleet's machines: written in parts, served as the one file `source()` gives.

The parts are standard library only and Python 3.8, for they run on machines Essaim did not make.
They import nothing but each other, and their names are distinct, so that they can be joined.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

#: In this order: each part uses only those before it.
PARTS = (
    "common",
    "mounts",
    "identity",
    "belongings",
    "traces",
    "keyrings",
    "homes",
    "restoring",
    "access",
    "expiry",
    "groups",
    "accounts",
    "helper",
    "server",
    "loop",
    "setup",
    "agent",
)
_OURS = re.compile(r"^from essaim\.agent\.\w+ import (?:\([^)]*\)|[^\n(]*)\n", re.MULTILINE)
_FUTURE = "from __future__ import annotations\n"


@functools.lru_cache(maxsize=1)
def source() -> str:
    """Give the whole agent as the text of one Python file, as it is served at /agent.py."""
    folder = Path(__file__).parent
    texts = [(folder / f"{part}.py").read_text(encoding="utf-8") for part in PARTS]
    bodies = [_OURS.sub("", text).replace(_FUTURE, "").strip() for text in texts]
    # The last part is the program: its docstring becomes the file's.
    summary, _, program = bodies.pop().partition('"""\n')
    return "\n\n".join(
        [f'#!/usr/bin/env python3\n{summary}"""\n\n{_FUTURE}', *bodies, program.strip(), ""]
    )
