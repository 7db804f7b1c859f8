"""What is tried first is not a password."""

from __future__ import annotations

import pytest

from essaim.model.passwords import guessable


@pytest.mark.parametrize(
    "password",
    [
        "password1234", "Password123!", "P@ssw0rd2024", "motdepasse1", "azertyuiop", "qwerty12345",
        "1234567890", "0987654321", "abcdefghij", "aaaaaaaaaa", "abcabcabcabc", "Bonjour2026!",
        "1qaz2wsx3edc", "adminadmin12", "essaim-essaim", "Welcome12345", "student2026",
        "adas-own-key", "letmein letmein", "ada.ada.2026!", "Ada-Lovelace",
    ],
)  # fmt: skip
def test_what_is_tried_first_is_guessable(password):
    assert guessable("ada", password)


@pytest.mark.parametrize(
    "password",
    [
        "correct horse battery", "a long sentence 1", "another sentence", "a lake with four swans",
        "tr0ub4dor&3-x", "le chat dort au soleil", "xK9#mQ2$vL5p", "Ptls-Ujy3k90mxVdt",
        "il pleut sur la gare", "my password is a poem", "a canadian trout in my bath",
        "twelve small letters", "nothing but lower case",
    ],
)  # fmt: skip
def test_a_sentence_or_something_random_is_not(password):
    assert not guessable("ada", password)
