"""Show what was changed by hand on machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from essaim.model.plans import Plan


def drift_lines(plan: Plan) -> list[str]:
    """The diffs a deep plan found, each once: many machines may have drifted alike."""
    found = dict.fromkeys(change.detail for change in plan.changes if change.detail)
    return [f"    {line}" for detail in found for line in detail.splitlines()]
