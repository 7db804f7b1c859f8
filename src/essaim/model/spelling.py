"""Near spellings, for errors that help."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(word: str, known: Iterable[str]) -> str:
    """`did you mean X?` when something known is spelt much like `word`, else nothing."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {matches[0]}?" if matches else ""
