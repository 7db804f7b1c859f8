"""What the terminal can do: its width, its colours, its cursor; and how much a person wants to see.

Everything is plain text where output is not a terminal, `TERM` is `dumb`, or `NO_COLOR` is set.
"""

from __future__ import annotations

import contextlib
import enum
import os
import sys
import textwrap
from collections.abc import Callable
from typing import TextIO

#: Columns of a terminal that does not say how many it has.
USUAL = 80
#: Columns left free at the end of a line that is redrawn: terminals echo Ctrl-C there.
_SPARE = 2
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


class Verbosity(enum.IntEnum):
    """How much is said besides results and errors."""

    QUIET = 0  #: nothing
    NORMAL = 1  #: plans, progress, hints
    VERBOSE = 2  #: also each step and each command as it happens


class _Chosen:
    """What this process was asked for."""

    verbosity = Verbosity.NORMAL


def set_verbosity(wanted: Verbosity) -> None:
    """Choose for this process how much is said."""
    _Chosen.verbosity = wanted


def verbosity() -> Verbosity:
    """Return how much is said."""
    return _Chosen.verbosity


def choose(wanted: Verbosity) -> Callable[[bool], bool]:
    """Make the callback of an option that chooses how much is said."""

    def chosen(given: bool) -> bool:
        if given:
            set_verbosity(wanted)
        return given

    return chosen


def is_terminal(stream: TextIO) -> bool:
    """Whether a person watches this stream on a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colours(stream: TextIO) -> bool:
    """Whether this stream may be coloured."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def columns(stream: TextIO) -> int | None:
    """Return how long a line may be on the terminal behind a stream; None when there is none.

    The last column stays free: what is written there makes some terminals begin another line.
    """
    if not stream.isatty():
        return None
    try:
        return (os.get_terminal_size(stream.fileno()).columns or USUAL) - 1
    except (OSError, ValueError):
        return USUAL - 1


def paint(text: str, style: str, stream: TextIO) -> str:
    """Return a text in a colour, or as it is where there are none."""
    if not style or not has_colours(stream):
        return text
    return f"\033[{_STYLES[style]}m{text}\033[0m"


def shorten(text: str, most: int) -> str:
    """Return a text of at most so many columns; an ellipsis stands for the rest."""
    return text if len(text) <= most else f"{text[: max(most - 1, 0)]}…"


def fitting(text: str) -> str:
    """As much of a text as one line of the terminal holds: a longer one could not be redrawn."""
    return shorten(text, max((columns(sys.stderr) or USUAL) - _SPARE, 1))


def fold(text: str, *, indent: str = "", hanging: str = "    ") -> list[str]:
    """Break a line for people into lines that fit their terminal; elsewhere it stays one line."""
    width = columns(sys.stderr)
    if width is None or len(indent) + len(text) <= width:
        return [indent + text]
    return textwrap.wrap(
        text,
        max(width, len(hanging) + 20),
        initial_indent=indent,
        subsequent_indent=hanging,
        break_on_hyphens=False,
    )


def show_cursor() -> None:
    """Make the cursor visible, in the middle of anything: a signal's handler may call it."""
    with contextlib.suppress(OSError, ValueError):
        if sys.__stderr__ is not None and sys.__stderr__.isatty():
            os.write(sys.__stderr__.fileno(), b"\033[?25h")
