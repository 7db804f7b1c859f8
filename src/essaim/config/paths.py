"""Paths in a site's file are written as seen from the lab that it lies in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from essaim.config.documents import Keys
    from essaim.config.problems import Problems

#: Settings that are paths, wherever they stand.
_PATHS = (("ca",), ("secret", "file"), ("ssh", "key"))


def make_absolute(settings: dict[str, Any], problems: Problems, at: Keys) -> None:
    """Make the paths among settings absolute; `at` says where those stand in the site's file."""
    for keys in _PATHS:
        inner = settings if len(keys) == 1 else settings.get(keys[0])
        text = inner.get(keys[-1]) if isinstance(inner, dict) else None
        if inner is not None and isinstance(text, str) and text and "-----BEGIN" not in text:
            inner[keys[-1]] = str(_lab(problems, (*at, *keys)) / Path(text).expanduser())


def _lab(problems: Problems, keys: Keys) -> Path:
    origin = problems.place(keys)
    folder = Path(origin.file).absolute().parent if origin else Path.cwd()
    return folder.parent if folder.name == "site" else folder
