"""Sentences that are written in English where they arise have a French that says the same."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from string import Formatter

import pytest

import essaim
from essaim.model.messages.sentences import SENTENCES
from essaim.model.translation import translated
from essaim.model.words import WORDS, both, words
from french import leftovers

SOURCE = Path(essaim.__file__).parent
#: What an operating system, or a cluster, says.
THEIRS = frozenset(
    {
        "connection refused",
        "no answer",
        "no route to host",
        "network is unreachable",
        "name or service not known",
        "authentication failure",
    }
)


def parts(text: str) -> list[str]:
    return [literal for literal, *_ in Formatter().parse(text)]


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


@functools.cache
def written() -> str:
    """Every text that stands in the code, besides the catalogue itself."""
    found = []
    for file in SOURCE.rglob("*.py"):
        if "messages" in file.parts or file.name in ("words.py", "translation.py"):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found += [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
    return "\0".join(found)


@pytest.mark.parametrize("english", SENTENCES)
def test_each_sentence_is_still_written_somewhere(english):
    """Whoever changes the English is told that its French is lost."""
    for part in parts(english):
        words_alone = part.strip(" :;()?")
        assert words_alone in written() or words_alone in THEIRS or usage(english), words_alone


def usage(english: str) -> bool:
    """Whether the library of the command line says it; what a terminal shows is tried elsewhere."""
    return english.startswith(("Missing ", "No such ", "Got unexpected ", "Option ", "Invalid "))


@pytest.mark.parametrize("english", SENTENCES)
def test_the_french_of_a_sentence_has_its_fields_and_no_english(english):
    french = SENTENCES[english]
    assert fields(french) <= fields(english)
    assert leftovers(french) == []


@pytest.mark.parametrize("key", WORDS)
def test_no_english_is_left_in_the_french_of_the_catalogue(key):
    assert leftovers(WORDS[key][1].replace("|", " ")) == []


def test_an_error_is_translated_with_its_place_and_its_hint():
    said = "few.csv:3: unknown column 'nmae' (did you mean name? (# before it leaves it out))"
    assert translated(said, "fr") == (
        "few.csv:3: colonne inconnue 'nmae' "
        "(vouliez-vous dire name ? (un # devant la fait ignorer))"
    )
    assert translated(said, "en") == said


def test_each_of_two_problems_is_translated():
    said = "a.csv:2: 'Zoé' is not a login\na.csv:3: 3 values, but 2 columns"
    assert translated(said, "fr").split("\n") == [
        "a.csv:2: 'Zoé' n'est pas un identifiant",
        "a.csv:3: 3 valeurs pour 2 colonnes",
    ]


def test_why_it_failed_is_translated_within_the_sentence():
    said = "site pve cannot be reached: https://pve1:8006: connection refused"
    assert translated(said, "fr") == (
        "le site pve est injoignable : https://pve1:8006 : connexion refusée"
    )


def test_of_both_languages_one_is_told_with_its_fields_translated():
    said = both("seat.busy", machine="promo/zoe", doing="wake")
    assert "(démarrage)" in translated(said, "fr")
    assert translated(said, "en") == words("seat.busy", "en", machine="promo/zoe", doing="wake")


def test_what_nobody_knows_stays_as_it_is():
    assert translated("TASK ERROR: storage 'x' is gone", "fr") == "TASK ERROR: storage 'x' is gone"
