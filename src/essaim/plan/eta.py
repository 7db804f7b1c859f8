"""How long a plan will take, from how long the same steps took before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from essaim.model.plans import Change

#: Steps measured while others ran beside them already contain that contention.
WIDTH = 16


def costs(durations: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, float]:
    """Sum the median of each step of each workflow."""
    by_workflow: dict[str, float] = defaultdict(float)
    for (workflow, _step), seconds in durations.items():
        if seconds:
            by_workflow[workflow] += median(seconds)
    return dict(by_workflow)


def estimate(
    changes: Iterable[Change], durations: Mapping[tuple[str, str], Sequence[float]]
) -> float | None:
    """Seconds until the last change is done, or None when some kind was never seen before."""
    known = costs(durations)
    finish: dict[str, float] = {}
    total = 0.0
    for change in changes:
        # The parent run does these itself, and they are quick.
        own = 0.0 if change.verb in ("gate", "open", "close", "reopen") else known.get(change.verb)
        if own is None:
            return None
        total += own
        finish[change.key] = own + max((finish.get(key, 0.0) for key in change.waits), default=0.0)
    return max([total / WIDTH, *finish.values()])
