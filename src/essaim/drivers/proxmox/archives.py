"""Archives containers are made from, by the short names people give them: pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from essaim.model.errors import RejectedError
from essaim.model.spelling import meant

_FOLDER = "vztmpl/"
_PARTS = re.compile(r"[0-9]+|[^0-9]+")


def is_short(asked: str) -> bool:
    """Whether `asked` is STORAGE:NAME, such as local:debian-12-standard, and no volume yet."""
    return "/" not in asked


def newest(asked: str, volumes: Iterable[str]) -> str:
    """The newest volume of a storage with that short name; RejectedError when it has none."""
    storage, _, name = asked.partition(":")
    start = f"{storage}:{_FOLDER}"
    names = [volume.removeprefix(start) for volume in volumes if volume.startswith(start)]
    found = [each for each in names if each.partition("_")[0] == name]
    if not found:
        hint = meant(name, [each.partition("_")[0] for each in names], kind="it has")
        raise RejectedError(
            f"storage {storage} has no archive {name}",
            hint=hint or f"on a node: pveam update; pveam available; pveam download {storage} FILE",
        )
    return start + max(found, key=_version)


def _version(name: str) -> list[tuple[int, str]]:
    """Numbers by their value, so that 11.10 is newer than 11.6."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _PARTS.findall(name)]
