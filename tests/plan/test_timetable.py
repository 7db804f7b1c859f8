from __future__ import annotations

from datetime import datetime

import pytest

from essaim.model.errors import InvalidError
from essaim.plan.timetable import read_times, shown_times

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
        ("lundi 8h", "2026-11-23 08:00"),
        ("lun-ven 7h45", "2026-11-17 07:45"),
        ("mar,jeu 13:30", "2026-11-17 13:30"),
        ("Mardi et jeudi à 13 h 30", "2026-11-17 13:30"),
        ("du lundi au vendredi 7h45", "2026-11-17 07:45"),
        ("tous les jours 18h", "2026-11-16 18:00"),
        ("les lundis 8h", "2026-11-23 08:00"),
        ("Monday to Friday at 07:45", "2026-11-17 07:45"),
        ("sam. 10h", "2026-11-21 10:00"),
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
        ("ludni 8h", "did you mean lundi"),
        ("mon 8:", "no time of day"),
        ("xyzzy 8h", "days are mon tue"),
        ("m 8h", "is no day"),
    ],
)
def test_what_cannot_be_meant_is_refused(text, says):
    with pytest.raises(InvalidError, match=says):
        read_times(text)


@pytest.mark.parametrize(
    ("text", "english", "french"),
    [
        ("lundi 8h", "mon 08:00", "lun 8h00"),
        ("mon-fri 07:45", "mon-fri 07:45", "lun-ven 7h45"),
        ("mar,jeu 13:30", "tue,thu 13:30", "mar,jeu 13h30"),
        ("18h30", "every day 18:30", "tous les jours 18h30"),
        ("sat,sun 10:00", "sat,sun 10:00", "sam,dim 10h00"),
    ],
)
def test_a_time_is_told_in_the_language_of_who_asks(text, english, french):
    days, jours = (
        ["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
        ["lun", "mar", "mer", "jeu", "ven", "sam", "dim"],
    )
    assert shown_times(text, days, "every day", "en") == english
    assert shown_times(text, jours, "tous les jours", "fr") == french
    assert read_times(english.replace("every day ", "")) == read_times(text)
    assert read_times(french) == read_times(text)
