"""Near spellings, so that an error can say what was probably meant."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: More names than this do not help anybody choose.
SHOWN = 12


def near(word: str, options: Iterable[str]) -> str:
    """Return the option spelt most like `word`, or nothing when none is close."""
    found = difflib.get_close_matches(word, list(options), n=1, cutoff=0.6)
    return found[0] if found else ""


def meant(word: str, options: Iterable[str], *, kind: str = "") -> str:
    """Say what was probably meant, or which options there are; a hint for a Problem."""
    names = sorted(set(options))
    if guess := near(word, names):
        return f"did you mean {guess}?"
    if not names or not kind:
        return ""
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return f"{kind}: {shown}"
