"""Which folders machines of a stack may have in common."""

from __future__ import annotations

import re
from typing import Any

from essaim.config.problems import HintedError

#: Names in the root folder that every machine needs for itself.
_OWN = frozenset("bin boot dev etc lib proc run sbin sys tmp usr var".split())  # noqa: SIM905 - short
_OWN_WITH_ALL_BELOW = ("/dev/", "/etc/", "/proc/", "/run/", "/sys/", "/usr/")
_FOLDER = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._-]*)+")


def check_shared(value: Any) -> tuple[str, ...]:
    """Read the folders; what cannot be shared is an error with a hint."""
    if value is not None and not isinstance(value, list | tuple):
        raise HintedError("must be a list of folders", "such as [/home]")
    folders = tuple(dict.fromkeys(value or ()))
    for folder in folders:
        if not isinstance(folder, str) or not _FOLDER.fullmatch(folder):
            raise HintedError(f"cannot have {folder!r}", "absolute paths, such as /home")
        if folder[1:] in _OWN or folder.startswith(_OWN_WITH_ALL_BELOW):
            raise HintedError(f"cannot have {folder}", "every machine needs that for itself")
        if any(folder.startswith(f"{other}/") for other in folders):
            raise HintedError(f"has {folder} twice", "a folder is shared with all that is in it")
    return folders
