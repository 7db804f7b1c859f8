"""Times of the week, as people write them: `mon-fri 07:45`, `lun,mer 13:30`, `18:30`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta

from essaim.model.errors import InvalidError, Problem
from essaim.model.spelling import meant

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
JOURS = ("lun", "mar", "mer", "jeu", "ven", "sam", "dim")
WEEK = len(DAYS)
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3])[:h]([0-5][0-9])")
_EXAMPLE = 'such as "mon-fri 07:45"'


@dataclass(frozen=True, slots=True)
class Times:
    """A time on some days of the week; 0 is Monday."""

    days: frozenset[int]
    at: time

    def next_after(self, now: datetime) -> datetime:
        """The first such time after another, both in local time without a zone."""
        day = now.replace(hour=self.at.hour, minute=self.at.minute, second=0, microsecond=0)
        while day <= now or day.weekday() not in self.days:
            day += timedelta(days=1)
        return day


def read_times(text: str) -> Times:
    """Read such a time; InvalidError says what is meant by it."""
    days, _, clock = text.strip().lower().rpartition(" ")
    match = _CLOCK.fullmatch(clock)
    if match is None:
        raise _wrong(f"{text!r} ends in no time of day", _EXAMPLE)
    wanted = frozenset(number for part in days.split(",") for number in _days(part.strip()))
    return Times(wanted, time(int(match[1]), int(match[2])))


def _days(part: str) -> range | list[int]:
    if not part:
        return range(WEEK)
    first, _, last = part.partition("-")
    begin, end = _day(first), _day(last or first)
    return [(begin + number) % WEEK for number in range((end - begin) % WEEK + 1)]


def _day(word: str) -> int:
    for names in (DAYS, JOURS):
        if word in names:
            return names.index(word)
    raise _wrong(f"{word!r} is no day", meant(word, DAYS, kind="days are"))


def _wrong(what: str, hint: str) -> InvalidError:
    return InvalidError([Problem(what, hint=hint)])
