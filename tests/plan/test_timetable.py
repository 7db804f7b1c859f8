from __future__ import annotations

from datetime import datetime

import pytest

from essaim.model.errors import InvalidError
from essaim.plan.timetable import read_times

MONDAY = datetime(2026, 11, 16, 9, 0)  # noqa: DTZ001 - local time, as classes have it


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mon 07:45", "2026-11-23 07:45"),
        ("mon-fri 07:45", "2026-11-17 07:45"),
        ("lun-ven 13h30", "2026-11-16 13:30"),
        ("sat,sun 10:00", "2026-11-21 10:00"),
        ("fri-mon 08:00", "2026-11-20 08:00"),
        ("18:30", "2026-11-16 18:30"),
        ("9:00", "2026-11-17 09:00"),  # this very minute has come
    ],
)
def test_the_next_time(text, expected):
    assert f"{read_times(text).next_after(MONDAY):%Y-%m-%d %H:%M}" == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("monday", "no time of day"),
        ("mon 25:00", "no time of day"),
        ("", "no time of day"),
        ("mno 07:45", "did you mean mon"),
    ],
)
def test_what_cannot_be_meant_is_refused(text, says):
    with pytest.raises(InvalidError, match=says):
        read_times(text)
