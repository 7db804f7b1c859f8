"""Answers `essaim __complete SHELL WORDS…`, which the shells' scripts run on every Tab."""

from __future__ import annotations

import contextlib
import sys

from essaim.cli.completion.words import FILES, FOLDERS, complete, in_bash, split


def answer(words: list[str]) -> None:
    """Print what could come next; nothing at all when something is wrong.

    bash passes the line as it was typed, the others its words.
    """
    with contextlib.suppress(Exception):
        shell, *typed = words
        typed = split(typed[0]) if shell == "bash" else typed
        found = complete(typed)
        if shell == "bash":
            found = in_bash(found, typed[-1])
        for value, about in found:
            plain = shell == "bash" or value in (FILES, FOLDERS) or not about
            sys.stdout.write(f"{value}\n" if plain else f"{value}\t{about}\n")
