"""Times of the week, as people write them: `mon-fri 07:45`, `lundi 8h`, `lun,mer 13:30`, `18h`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta

from essaim.model.errors import InvalidError, Problem
from essaim.model.spelling import meant

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
JOURS = ("lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche")
WEEK = len(DAYS)
#: Days may be cut short to so many letters, and have a point or a plural behind them.
_SHORT = 3
_WORDS = [word for name in (*DAYS, *JOURS) for word in (name[:_SHORT], name)]
#: 7:45, 07h45, 8h, 18 h 30
_CLOCK = re.compile(
    r"(?P<days>.*?)\s*\b(?P<hour>[01]?[0-9]|2[0-3])\s?[:h]\s?(?P<minute>[0-5][0-9])?"
)
_EXAMPLE = 'such as "mon-fri 07:45"'
_DAYS_ARE = "days are mon tue wed thu fri sat sun, or lun mar mer jeu ven sam dim"
#: Words between a day and its time, or between days.
_BETWEEN = re.compile(r"\s+(?:at|à)$")
_TO = re.compile(r"\s*(?:-|\u2013|\bto\b|\bau?\b)\s*")
_AND = re.compile(r"\s*(?:,|;|\band\b|\bet\b|\s)\s*")
#: Said before days, and not needed.
_BEFORE = re.compile(r"^(?:le|les|du|from|on|every|chaque)\s+")
_EVERY = ("", "every day", "daily", "tous les jours")


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
    match = _CLOCK.fullmatch(" ".join(text.lower().split()))
    # Hours without minutes are written with an h: 8: is half a time.
    if match is None or (match["minute"] is None and not text.rstrip().lower().endswith("h")):
        raise _wrong(f"{text!r} ends in no time of day", _EXAMPLE)
    days = _BEFORE.sub("", _BETWEEN.sub("", match["days"]))
    return Times(_days(days), time(int(match["hour"]), int(match["minute"] or 0)))


def shown_times(text: str, days: Sequence[str], every: str, language: str) -> str:
    """A time of the week with these words for its days: `lun-ven 7h45`."""
    its = read_times(text)
    french = language == "fr"
    clock = f"{its.at.hour}h{its.at.minute:02}" if french else f"{its.at:%H:%M}"
    if len(its.days) == WEEK:
        return f"{every} {clock}"
    return f"{','.join(_runs(sorted(its.days), days))} {clock}"


def _runs(numbers: Sequence[int], days: Sequence[str]) -> list[str]:
    """Days that follow one another as one range: from three on."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    found = []
    for run in runs:
        short = len(run) < 3  # noqa: PLR2004 - mon,tue reads better than mon-tue
        found += [days[each] for each in run] if short else [f"{days[run[0]]}-{days[run[-1]]}"]
    return found


def _days(text: str) -> frozenset[int]:
    if text in _EVERY:
        return frozenset(range(WEEK))
    joined = _TO.sub("-", text)
    return frozenset(number for part in _AND.split(joined) if part for number in _range(part))


def _range(part: str) -> list[int]:
    first, _, last = part.partition("-")
    begin, end = _day(first), _day(last or first)
    return [(begin + number) % WEEK for number in range((end - begin) % WEEK + 1)]


def _day(word: str) -> int:
    short = word.rstrip(".")
    for names in (DAYS, JOURS):
        for number, name in enumerate(names):
            if len(short) >= _SHORT and (name.startswith(short) or short == f"{name}s"):
                return number
    raise _wrong(f"{word!r} is no day", meant(word, _WORDS) or _DAYS_ARE)


def _wrong(what: str, hint: str) -> InvalidError:
    return InvalidError([Problem(what, hint=hint)])
