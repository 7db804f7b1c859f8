"""Times and lengths of time, as people write and read them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import typer

from essaim.cli.output import duration

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "j": 86400, "w": 604800}
_PART = re.compile(r"(\d+(?:\.\d+)?)(min|[smhdjw])")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")
HOUR = 3600
DAY = 86400


def seconds(text: str) -> int:
    """Read 90m, 2h, 1d or 1h30m; usage is explained when it is none of them."""
    packed = "".join(text.lower().split())
    if not _WHOLE.fullmatch(packed):
        raise typer.BadParameter(f"{text!r} is no length of time; say 90m, 2h, 1d or 1h30m")
    total = round(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(packed)))
    if total < 1:
        raise typer.BadParameter(f"{text!r} is no time at all; say 90m, 2h, 1d or 1h30m")
    return total


def moment(written: str | None) -> float | None:
    """Read a time of the API: seconds since 1970."""
    if not written:
        return None
    found = datetime.fromisoformat(written)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def clock(written: str | None) -> str:
    """A time of the API on the clock of this place; a dash when there is none."""
    at = moment(written)
    if at is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def left(written: str | None) -> str:
    """How long it is until a time of the API; a dash when there is none."""
    at = moment(written)
    return "-" if at is None else length(max(0.0, at - time.time()))


def length(span: float) -> str:
    """A length of time in its two largest units."""
    if span < HOUR:
        return duration(span)
    if span < DAY:
        return f"{span // HOUR:.0f} h {span % HOUR // 60:02.0f} min"
    return f"{span // DAY:.0f} d {span % DAY // HOUR:.0f} h"
