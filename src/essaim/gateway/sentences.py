"""What the gateway says to people whose language it does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from essaim.gateway.routes import student_of
from essaim.model.errors import RejectedError
from essaim.model.words import both, words


def sentence(key: str, /, **fields: Any) -> str:
    """Give the sentence in each language, one below the other."""
    return both(_key(key, fields), **fields)


def _key(key: str, fields: Mapping[str, Any]) -> str:
    """The sentence of that key about a lease, or about a student's machine."""
    about_student = student_of(fields.get("lease", "")) is not None
    return f"gateway.student_{key}" if about_student else f"gateway.{key}"


def in_one_line(text: str) -> str:
    """Put the languages side by side, for places that hold one line."""
    return " / ".join(text.splitlines())


class RefusedError(RejectedError):
    """The client is not led to a machine; `shown` says why in each language."""

    def __init__(self, key: str, /, **fields: Any) -> None:
        super().__init__(words(_key(key, fields), "en", **fields))
        self.shown = sentence(key, **fields)
