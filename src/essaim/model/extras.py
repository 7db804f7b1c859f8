"""How an optional part of Essaim is installed: by the launcher in a checkout, else by pip."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]
#: True when Essaim runs from a checkout, whose launcher `./essaim` keeps the environment.
IN_CHECKOUT = (_ROOT / "essaim").is_file() and (_ROOT / "requirements.lock").is_file()


def launcher() -> Path | None:
    """Return the launcher of the checkout Essaim runs from; None for an installed one."""
    return _ROOT / "essaim" if IN_CHECKOUT else None


def install_hint(extra: str, *, checkout: bool = IN_CHECKOUT) -> str:
    """Return the command that installs one of Essaim's extras."""
    return f"essaim --prepare {extra}" if checkout else f"pip install 'essaim[{extra}]'"


def package_hint(*packages: str) -> str:
    """Return the command that installs packages that belong to no extra, beside Essaim."""
    return f"{sys.executable} -m pip install {' '.join(map(repr, packages))}"
