"""How answers look: tables and sentences for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.cli.program import localise

if TYPE_CHECKING:
    from essaim.model.plans import Plan

_NUMBERED = re.compile(r"(.*?)(\d+)")


def print_json(value: Any) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json.dumps(value, default=_plain, indent=2) + "\n")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def say(text: str = "") -> None:
    """Write a line for people; results stay alone on stdout."""
    sys.stderr.write(localise(text) + "\n")


def table(rows: Iterable[Sequence[str]], headings: Sequence[str]) -> str:
    """Columns aligned with spaces: reads well, greps well."""
    everything = [tuple(headings), *(tuple(row) for row in rows)]
    widths = [max(len(row[i]) for row in everything) for i in range(len(headings))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in everything]
    return "\n".join(line.rstrip() for line in lines)


def duration(seconds: float | None) -> str:
    """Seconds as people say them."""
    if seconds is None:
        return "?"
    if seconds < 10:  # noqa: PLR2004 - below ten seconds a tenth is worth saying
        return f"{seconds:.1f} s"
    if seconds < 100:  # noqa: PLR2004 - above that, minutes read better
        return f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"


def ranges(names: Sequence[str]) -> str:
    """Fold numbered names: a-1, a-2, a-3, b → a-[1-3], b."""
    groups: dict[str, list[int]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        groups.setdefault(match[1] if match else name, []).append(int(match[2]) if match else -1)
    return ", ".join(_fold(prefix, numbers) for prefix, numbers in groups.items())


def _fold(prefix: str, numbers: list[int]) -> str:
    numbers.sort()
    if numbers == [-1]:
        return prefix
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return f"{prefix}[{','.join('-'.join(map(str, run)) for run in runs)}]"


def plan_lines(plan: Plan) -> list[str]:
    """A plan as people read it: alike changes on one line, with the reason."""
    folded: dict[tuple[str, str, str, str], list[str]] = {}
    for change in plan.changes:
        if change.verb == "gate":
            continue
        what = change.role or ("" if change.machine else change.key.replace("image-", "image "))
        key = (change.action.value, change.verb, what, change.reason)
        folded.setdefault(key, []).append(change.machine)
    lines = []
    for (action, verb, what, reason), machines in folded.items():
        subject = "network" if verb in ("open", "reopen", "close") else ranges(machines)
        if what:
            subject = f"{subject} {what}".strip()
        count = f" ({len(machines)})" if len(machines) > 1 else ""
        lines.append(f"  {action} {subject + count:<44} {verb}: {reason}")
    return lines


def plan_summary(plan: Plan) -> str:
    """One sentence on a plan: how much, how long."""
    machines = [c for c in plan.changes if c.machine and not c.role and c.verb not in _NETWORK]
    counts = {
        "to add": sum(c.action.value == "+" for c in machines),
        "to change": sum(c.action.value == "~" for c in machines),
        "to remove": sum(c.action.value == "-" for c in machines),
        "to configure": len({c.machine for c in plan.changes if c.role and c.action.value == "~"}),
    }
    said = [f"{n} machine{'s' if n > 1 else ''} {words}" for words, n in counts.items() if n]
    said += ["a playbook to play" for change in plan.changes if change.verb == "play"]
    time = f"about {duration(plan.seconds)}" if plan.seconds is not None else "no estimate yet"
    return f"{plan.stack}: {', '.join(said) or 'small changes'}; {time}"


_NETWORK = ("open", "reopen", "close")
