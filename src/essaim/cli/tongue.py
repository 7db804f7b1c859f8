"""Speaks to a school in the language of its terminals."""

from __future__ import annotations

import os
from typing import Any

from essaim.cli.output import say
from essaim.model.translation import translated
from essaim.model.words import language, words


def spoken() -> str:
    """The language of this terminal, as POSIX has it told."""
    told = (os.environ.get(name, "") for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    return language(next((text for text in told if text), ""))


def said(key: str, /, **fields: Any) -> str:
    """A sentence in the language of this terminal."""
    return words(key, spoken(), **fields)


def tell(key: str, /, **fields: Any) -> None:
    """Write a sentence for a person, in their language."""
    say(said(key, **fields))


def in_their_language(text: str) -> str:
    """A sentence from below, in the language of this terminal as far as it is known there."""
    return translated(text, spoken())
