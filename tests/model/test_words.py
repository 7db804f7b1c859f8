"""What students read exists in both languages, and says the same."""

from __future__ import annotations

from string import Formatter

import pytest

from essaim.model.words import WORDS, both, language, one, words


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


@pytest.mark.parametrize("key", WORDS)
def test_each_sentence_exists_in_both_languages_with_the_same_fields(key):
    english, french = WORDS[key]
    assert english.strip()
    assert french.strip()
    assert fields(english) == fields(french)
    assert "" not in fields(english), "fields have names"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fr_FR.UTF-8", "fr"),
        ("fr", "fr"),
        ("FR_ca", "fr"),
        ("en_US.UTF-8", "en"),
        ("C.UTF-8", "en"),
        ("", "en"),
        ("de_DE.UTF-8", "en"),
        ("fr-CH, fr;q=0.9, en;q=0.8", "fr"),
        ("de, en;q=0.8, fr;q=0.5", "en"),
        ("de;q=0.9, fr;q=0.5", "fr"),
        ("fry-NL, gaenfr", "en"),
        ("*", "en"),
    ],
)
def test_the_language_is_the_first_one_we_speak(text, expected):
    assert language(text) == expected


def test_words_are_filled_in():
    assert words("extend.done", "en", lease="l-1234", until="noon") == "l-1234 lasts until noon"
    assert words("extend.done", "fr", lease="l-1234", until="midi").startswith("l-1234 dure")


def test_both_is_english_above_french():
    assert both("login.none") == "you are not logged in\naucune session n'est ouverte"


def test_of_both_languages_one_is_told():
    told = both("seat.none", machine="promo/zoe")
    assert one(told, "fr") == words("seat.none", "fr", machine="promo/zoe")
    assert one(f"Introuvable : {told}", "fr") == "promo/zoe n'existe pas ; create la crée"
    assert one("one line", "fr") == "one line"
