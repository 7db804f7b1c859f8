"""Sees that no due run is forgotten because a message about it was lost."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

#: Seconds between looks.  Workers look too, and sooner; this is for when none of them does.
EVERY = 2.0


@runtime_checkable
class Dispatches(Protocol):
    """A courier that sends messages."""

    def dispatch(self) -> float:
        """Tell workers of due runs; return the seconds until more may be."""


class Dispatch:
    """Tells workers of due runs that nobody has come for, at most once in a few seconds each."""

    name = "dispatch"

    def __init__(self, courier: Dispatches) -> None:
        self._courier = courier

    def reconcile(self) -> float:
        """Send."""
        self._courier.dispatch()
        return EVERY
