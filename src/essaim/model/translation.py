"""French for sentences that were written in English where they arose."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from essaim.model.messages.sentences import SENTENCES
from essaim.model.words import LANGUAGES, WORDS, one


def translated(text: str, language: str) -> str:
    """A sentence that was written in English, in another language; as it is when it is unknown.

    Of an error with its place and its hint, `few.csv:3: … (…)`, each part is translated.
    """
    lines = text.split("\n")
    if _in_both(lines):
        return one(text, language)
    if language == LANGUAGES[0]:
        return text
    return "\n".join(_problem(line) for line in lines)


def _in_both(lines: Sequence[str]) -> bool:
    """Whether `both` wrote these lines: two problems of a file are two lines as well."""
    return len(lines) == len(LANGUAGES) and any(
        all(_pattern(said).fullmatch(line) for said, line in zip(pair, lines, strict=True))
        for pair in WORDS.values()
    )


_PLACED = re.compile(r"(?P<place>\S+:[0-9]+: )?(?P<what>.*?)(?: \((?P<hint>.*)\))?")


def _problem(line: str) -> str:
    """One problem, as `Problem` writes it."""
    parts = _PLACED.fullmatch(line)
    if parts is None:
        return line
    hint = _sentence(parts["hint"]) if parts["hint"] else ""
    what = _sentence(parts["what"]) if hint is not None else None
    if what is None:  # what looks like a hint may be a part of the sentence
        return _sentence(line) or line
    return f"{parts['place'] or ''}{what}{f' ({hint})' if hint else ''}"


def _sentence(text: str) -> str | None:
    for pattern, french in _patterns():
        if match := pattern.fullmatch(text):
            # A field may hold a sentence of its own: why something could not be reached.
            fields = {key: _sentence(value) or value for key, value in match.groupdict().items()}
            return french.format(**fields)
    return None


@functools.cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """What English sentences look like, those with the most words of their own first."""

    def own(english: str) -> int:
        return len(_FIELD.sub("", english))

    ordered = sorted(SENTENCES.items(), key=lambda each: -own(each[0]))
    return [(_pattern(english), french) for english, french in ordered]


_FIELD = re.compile(r"\{(\w+)\}")


@functools.cache
def _pattern(english: str) -> re.Pattern[str]:
    *parts, last = _FIELD.split(english)
    text = "".join(
        f"(?P<{part}>.+?)" if at % 2 else re.escape(part) for at, part in enumerate(parts)
    )
    return re.compile(text + re.escape(last))
