"""`doctor`: what this computer can do for Essaim, and how to get what is missing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from essaim.cli.output import print_json
from essaim.cli.stacks import Json, control_plane

if TYPE_CHECKING:
    from essaim.usecases.doctor import Check

MISSING = 3


def doctor(as_json: Json = False) -> None:
    """Check this computer, and say how to get what is missing."""
    from essaim.usecases import doctor as use

    with control_plane() as control:
        checks = use.examine(control)
    if as_json:
        print_json(checks)
    else:
        for check in checks:
            sys.stdout.write(_line(check) + "\n")
    sys.exit(0 if all(check.ok for check in checks) else MISSING)


def _line(check: Check) -> str:
    return f"{'ok ' if check.ok else 'NO '} {check.name:<20} {check.text}"
