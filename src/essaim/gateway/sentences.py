"""What the gateway says to people whose language it does not know."""

from __future__ import annotations

from typing import Any

from essaim.model.errors import RejectedError
from essaim.model.words import both, words


def sentence(key: str, /, **fields: Any) -> str:
    """Give the sentence in each language, one below the other."""
    return both(f"gateway.{key}", **fields)


def in_one_line(text: str) -> str:
    """Put the languages side by side, for places that hold one line."""
    return " / ".join(text.splitlines())


class RefusedError(RejectedError):
    """The client is not led to a machine; `shown` says why in each language."""

    def __init__(self, key: str, /, **fields: Any) -> None:
        super().__init__(words(f"gateway.{key}", "en", **fields))
        self.shown = sentence(key, **fields)
