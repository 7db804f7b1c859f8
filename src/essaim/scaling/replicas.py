"""What an autoscaler asks of whatever runs the replicas of a service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica that serves, or will in a moment."""

    id: str
    cpu_seconds: float | None  #: used since it was started; None when that could not be read
    started_at: float  #: seconds since 1970


class Replicas(Protocol):
    """The replicas of one service.  TransientError from any verb: look again later."""

    def list(self) -> Sequence[Replica]:
        """List those that serve or will, the oldest first; those told to stop are not among them.

        What an earlier process left half done is finished on the way.
        """

    def add(self, count: int) -> None:
        """Start so many more."""

    def remove(self, ids: Sequence[str]) -> None:
        """Let these finish what they do and end.  One that is gone already is no error."""

    def close(self) -> None:
        """Let go of connections.  The replicas go on."""
