"""French for sentences that were written in English where they arose."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from essaim.model.messages.sentences import SENTENCES
from essaim.model.words import LANGUAGES, WORDS


def translated(text: str, language: str) -> str:
    """A sentence that was written in English, in another language; as it is when it is unknown.

    Of an error with its place and its hint, `few.csv:3: … (…)`, each part is translated.
    """
    lines = text.split("\n")
    if len(lines) == len(LANGUAGES) and (found := _of_both(lines, language)):
        return found
    if language == LANGUAGES[0]:
        return text
    return "\n".join(_problem(line) for line in lines)


def _of_both(lines: Sequence[str], language: str) -> str:
    """What `both` wrote, in one language; nothing when these are two problems of a file."""
    for english, french in WORDS.values():
        match = _pattern(english).fullmatch(lines[0])
        if match and _pattern(french).fullmatch(lines[1]):
            if language == LANGUAGES[0]:
                return lines[0]
            return french.format(**_fields(match))
    return ""


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
            return french.format(**_fields(match))
    return None


def _fields(match: re.Match[str]) -> dict[str, str]:
    """What stands in the fields: some hold sentences of their own, such as why it failed."""
    return {key: _sentence(value) or value for key, value in match.groupdict().items()}


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
    seen: set[str] = set()
    text = ""
    for at, part in enumerate(_FIELD.split(english)):
        if at % 2 == 0:
            text += re.escape(part)
        else:  # a field that comes again holds the same
            text += f"(?P={part})" if part in seen else f"(?P<{part}>.+?)"
            seen.add(part)
    return re.compile(text)
