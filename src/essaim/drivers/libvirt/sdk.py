"""The library libvirt-python, of which the rest of the driver knows only this name."""

from __future__ import annotations

import importlib
from typing import Any

from essaim.model.errors import MissingExtraError


def _load() -> Any:
    try:
        found = importlib.import_module("libvirt")
    except ImportError as error:
        raise MissingExtraError(
            f"the driver libvirt needs libvirt-python, which is not there: {error}", "libvirt"
        ) from error
    # By default it writes every error to standard error, also those that are dealt with.
    found.registerErrorHandler(lambda _context, _error: None, None)
    return found


libvirt: Any = _load()
