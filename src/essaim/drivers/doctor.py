"""What a driver says of the place its machines come from, or the computer it runs on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at.  `text` says what was found, or what to do."""

    name: str
    ok: bool  #: machines can be made in spite of it
    text: str
    warn: bool = False  #: it works, but not as well as it could: `text` says how to better it
