"""What a step's exception means for its run, and how it is told."""

from __future__ import annotations

import enum
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim.model.errors import EssaimError, StuckError, TransientError

if TYPE_CHECKING:
    from collections.abc import Callable

    from essaim.engine.workflow import Backoff


class Verdict(enum.Enum):
    """What to do about a failure."""

    RETRY = enum.auto()
    FINAL = enum.auto()
    STUCK = enum.auto()


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of a step, judged."""

    verdict: Verdict
    line: str  #: for the run
    text: str  #: for the step: all that is known


def judge(error: Exception, tries: int, backoff: Backoff) -> Failure:
    """Judge the exception that ended a step's `tries`-th try."""
    if not isinstance(error, EssaimError):
        last = traceback.format_exception_only(error)[-1].strip()
        text = "".join(traceback.format_exception(error)).rstrip()
        return Failure(Verdict.FINAL, last, text)
    line = f"{error.what} ({error.hint})" if error.hint else error.what
    if isinstance(error, StuckError):
        return Failure(Verdict.STUCK, line, line)
    if isinstance(error, TransientError):
        if tries < backoff.attempts:
            return Failure(Verdict.RETRY, line, line)
        line += f" [tried {tries} times]" if tries > 1 else ""
    return Failure(Verdict.FINAL, line, line)


def pause(backoff: Backoff, tries: int, random: Callable[[], float]) -> float:
    """Return how long to wait after the `tries`-th try: doubled each time, half of it jitter."""
    longest = min(backoff.longest, backoff.first * 2.0 ** min(tries - 1, 60))
    return longest * (0.5 + random() / 2)
