"""How answers look: tables and sentences for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.cli.program import localise
from essaim.cli.terminal import (
    Verbosity,
    columns,
    fold,
    paint,
    shorten,
    verbosity,
)

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


def inform(text: str = "") -> None:
    """Write a line that is neither a result nor an error: left out when quiet."""
    if verbosity() is not Verbosity.QUIET:
        say(text)


#: Columns of output that is no terminal are padded to at most so many characters.
_PADDED = 32
#: A column that is made narrower keeps at least so many characters.
_NARROW = 8

#: The style of a cell, by its column's heading and what it holds.
Style = Callable[[str, str], str]


def table(
    rows: Iterable[Sequence[str]],
    headings: Sequence[str],
    *,
    least: Sequence[str] = (),
    style: Style = lambda _heading, _cell: "",
) -> str:
    """Columns aligned with spaces: reads well, greps well.

    On a terminal every line fits: columns are made narrower, those named in `least` first, then the
    widest; never the first, which says what the line is about.  Elsewhere nothing is left out.
    """
    everything = [tuple(headings), *(tuple(row) for row in rows)]
    widths = [max(len(row[at]) for row in everything) for at in range(len(headings))]
    room = columns(sys.stdout)
    if room is None:
        widths = [min(width, max(_PADDED, len(headings[at]))) for at, width in enumerate(widths)]
    else:
        _narrow(widths, [headings.index(each) for each in least], room)
    return "\n".join(
        _line(cells, widths, headings if at else (), style, cut=room is not None)
        for at, cells in enumerate(everything)
    )


def _narrow(widths: list[int], least: Sequence[int], room: int) -> None:
    """Take from columns until a line fits."""
    excess = sum(widths) + 2 * (len(widths) - 1) - room
    for at in least:
        taken = max(min(excess, widths[at] - _NARROW), 0)
        widths[at] -= taken
        excess -= taken
    while excess > 0:
        at = max(range(1, len(widths)), key=lambda each: widths[each], default=0)
        if not at or widths[at] <= _NARROW:
            return
        widths[at] -= 1
        excess -= 1


def _line(
    cells: Sequence[str],
    widths: Sequence[int],
    headings: Sequence[str],
    style: Style,
    *,
    cut: bool,
) -> str:
    """One line of a table; that of the headings has none above it."""
    last = max((at for at, cell in enumerate(cells) if cell), default=0)
    parts = []
    for at, cell in enumerate(cells[: last + 1]):
        shown = shorten(cell, widths[at]) if cut and at else cell
        padded = shown.rstrip() if at == last else shown.ljust(widths[at])
        parts.append(paint(padded, style(headings[at], cell) if headings else "", sys.stdout))
    return "  ".join(parts)


def duration(seconds: float | None) -> str:
    """Seconds as people say them."""
    if seconds is None:
        return "?"
    if seconds < 10:  # noqa: PLR2004 - below ten seconds a tenth is worth saying
        return f"{seconds:.1f} s"
    if seconds < 100:  # noqa: PLR2004 - above that, minutes read better
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s"


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


#: The colours of what is added, changed and removed.
COLOURS = {"+": "green", "~": "yellow", "-": "red"}
#: Most columns for what a line of a plan is about; the reason stands behind.
_ABOUT = 44


def plan_lines(plan: Plan) -> list[str]:
    """A plan as people read it: alike changes on one line, with the reason."""
    folded: dict[tuple[str, str, str, str], list[str]] = {}
    for change in plan.changes:
        if change.verb == "gate":
            continue
        what = change.role or ("" if change.machine else change.key.replace("image-", "image "))
        key = (change.action.value, change.verb, what, change.reason)
        folded.setdefault(key, []).append(change.machine)
    about: dict[tuple[str, str, str, str], str] = {}
    for (action, verb, what, reason), machines in folded.items():
        subject = "network" if verb in _NETWORK else ranges(machines)
        count = f" ({len(machines)})" if len(machines) > 1 else ""
        about[action, verb, what, reason] = f"{subject} {what}".strip() + count
    width = min(max(map(len, about.values()), default=0), _ABOUT)
    return [
        paint(line, COLOURS[action], sys.stderr)
        for (action, verb, _, reason), subject in about.items()
        for line in _fold_plan(f"{action} {subject:<{width + 2}}", f"{verb}: {reason}")
    ]


def _fold_plan(about: str, why: str) -> list[str]:
    """One line where it fits; else the reason has lines of its own."""
    if len(about) + len(why) + 2 <= (columns(sys.stderr) or sys.maxsize):
        return [f"  {about}{why}"]
    about = about.rstrip()
    return [*fold(about, indent="  "), *fold(why, indent="      ", hanging="      ")]


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
