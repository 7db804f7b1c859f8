"""Couriers: how due runs come to whoever carries them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Courier(Protocol):
    """What all couriers do.  The journal is the truth; a courier only makes it quick."""

    def wake(self, run_id: str | None = None) -> None:
        """See that due runs are carried soon.  Say it after adding runs; it never raises."""

    def wait(self, until: str | Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until a run is over or stuck, or until a condition holds; False when it does not.

        Returns False after `timeout` seconds, or once all has come to a halt after `interrupt`.
        """

    def interrupt(self) -> None:
        """Begin to stop, without waiting."""

    def stop(self, *, hand_back: bool = True, grace: float = 30.0) -> bool:
        """End; return whether all that was under way here did so within `grace` seconds."""
