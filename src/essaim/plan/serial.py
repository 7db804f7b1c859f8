"""Plans as JSON: what is stored, printed by `--json`, and read back unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from essaim.model.plans import Action, Change, Plan


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Turn a plan into plain JSON values."""
    return {
        "stack": plan.stack,
        "world": plan.world,
        "wanted": plan.wanted,
        "seconds": plan.seconds,
        "changes": [_change_to_json(change) for change in plan.changes],
    }


def _change_to_json(change: Change) -> dict[str, Any]:
    body = asdict(change)
    # A program of an earlier version may read this plan.
    for key in ("detail", "gives_back"):
        if not body[key]:
            del body[key]
    return body


def plan_from_json(body: Mapping[str, Any]) -> Plan:
    """Read a plan back."""
    changes = tuple(_change(change) for change in body["changes"])
    return Plan(
        stack=body["stack"],
        world=body["world"],
        wanted=body["wanted"],
        seconds=body["seconds"],
        changes=changes,
    )


def _change(body: Mapping[str, Any]) -> Change:
    return Change(**{**body, "action": Action(body["action"]), "waits": tuple(body["waits"])})
