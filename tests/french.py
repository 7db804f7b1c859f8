"""Finds what was left in English in French text."""

from __future__ import annotations

import re

#: Words that no French sentence has; few enough that a command's own words are not among them.
ENGLISH = frozenset(
    """the is are of to not with and be from for this was were it its your you by has have which
    what when there nothing nobody done failed ready stopped lost cannot does should would been
    their them while until since called must name template usage error missing try help
    invalid value options waits tries again machine's""".split()  # noqa: SIM905 - reads better so
)
#: What stands as it is in any language: commands, options, files, addresses, what is typed.
_KEPT = re.compile(
    r"essaim(?:[ \t]+(?!;)[\w./|-]+)*|--?\w[\w-]*|\S+\.(?:csv|yaml)\S*|https?://\S+|\{\w+\}|'[^']*'"
    r"|`[^`]*`|<[^>]*>|\w+:(?=\s|$)|iconv\b.*"
)


def leftovers(text: str) -> list[str]:
    """English words in a text."""
    plain = _KEPT.sub(" ", text)
    return sorted({word for word in re.findall(r"[\w']+", plain.lower()) if word in ENGLISH})
