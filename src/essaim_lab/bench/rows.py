"""A figure, what was promised about it, what a peer needed for the same, and the verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADINGS = ("WHAT", "MEASURED", "TARGET", "PEER", "PEER'S", "RATIO", "VERDICT")
OK, MISSED, NONE = "ok", "MISSED", "-"

#: From here on digits after the point say nothing.
_WHOLE = 100


class CannotRunError(Exception):
    """A benchmark could not be run at all; its message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What somebody else needed for the same work on the same machine."""

    name: str
    value: float | None = None  #: None when it could not be measured; `note` says why
    command: str = ""
    note: str = ""
    stopped: bool = False  #: it was ended before it was done: `value` is the least it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.  Less is better unless `more_is_better`."""

    what: str
    value: float
    unit: str
    command: str
    most: float | None = None
    least: float | None = None
    more_is_better: bool = False
    peer: Peer | None = None
    least_ratio: float | None = None  #: how many times better than the peer it shall be
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer; None when there is nothing to compare."""
        theirs = self.peer.value if self.peer else None
        # A difference of two readings may come out as nothing or less: no ratio can be made of it.
        if theirs is None or theirs <= 0 or self.value <= 0:
            return None
        return self.value / theirs if self.more_is_better else theirs / self.value

    @property
    def verdict(self) -> str:
        """Whether everything promised holds; `-` when nothing is."""
        kept = [
            *([self.value <= self.most] if self.most is not None else []),
            *([self.value >= self.least] if self.least is not None else []),
        ]
        if self.least_ratio is not None and self.ratio is not None:
            kept.append(self.ratio >= self.least_ratio)
        if not kept:
            return NONE
        return OK if all(kept) else MISSED

    def cells(self) -> tuple[str, ...]:
        """Give the texts of this line, one for each heading."""
        return (
            self.what,
            figure(self.value, self.unit),
            self._target(),
            self.peer.name if self.peer else NONE,
            self._theirs(),
            self._times(),
            self.verdict,
        )

    def document(self) -> dict[str, Any]:
        """Give this line as JSON says it."""
        return {**asdict(self), "ratio": self.ratio, "verdict": self.verdict}

    def _target(self) -> str:
        parts = [
            f"{sign} {figure(value, self.unit)}"
            for sign, value in (("<=", self.most), (">=", self.least))
            if value is not None
        ]
        if self.least_ratio is not None:
            parts.append(f"ratio >= {number(self.least_ratio)}")
        return ", ".join(parts) or NONE

    def _theirs(self) -> str:
        if self.peer is None:
            return NONE
        if self.peer.value is None:
            return self.peer.note or "not measured"
        return (">" if self.peer.stopped else "") + figure(self.peer.value, self.unit)

    def _times(self) -> str:
        if self.ratio is None:
            return NONE
        stopped = self.peer is not None and self.peer.stopped
        return (">" if stopped else "") + number(self.ratio)


def number(value: float) -> str:
    """Write a number with as many digits as it has meaning."""
    if abs(value) >= _WHOLE:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def figure(value: float, unit: str) -> str:
    """Write a number with its unit."""
    return f"{number(value)} {unit}".rstrip()


def table(rows: Sequence[Row]) -> str:
    """Lay rows out in columns below their headings."""
    lines = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
