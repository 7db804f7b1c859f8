"""Whether somebody would guess a password: common words, keyboard rows, numbers, repetitions.

What is left of a password without all that must be long enough by itself.
"""

from __future__ import annotations

import re

#: Words that guessing begins with, in English and French, long ones first.
COMMON = sorted(
    (
        "password", "passwort", "passphrase", "motdepasse", "secret", "admin", "administrator",
        "administrateur", "root", "user", "utilisateur", "login", "welcome", "bienvenue", "bonjour",
        "salut", "hello", "letmein", "changeme", "changemoi", "iloveyou", "jetaime", "monkey",
        "dragon", "sunshine", "soleil", "princess", "princesse", "football", "baseball", "master",
        "superman", "batman", "pokemon", "doudou", "chouchou", "loulou", "marseille", "france",
        "paris", "student", "etudiant", "teacher", "professeur", "school", "ecole", "university",
        "universite", "computer", "ordinateur", "linux", "ubuntu", "debian", "essaim", "test",
        "demo", "guest", "default", "qwerty", "azerty", "qwertz", "pass", "mdp", "cisco",
        "summer", "winter", "spring", "autumn", "hiver", "printemps", "automne",
    ),
    key=len,
    reverse=True,
)  # fmt: skip
#: Characters next to each other: on keyboards, in the alphabet, among numbers.
ROWS = (
    "abcdefghijklmnopqrstuvwxyz",
    "01234567890",
    "qwertyuiop",
    "asdfghjkl",
    "zxcvbnm",
    "azertyuiop",
    "qsdfghjklm",
    "wxcvbn",
    "1qaz2wsx3edc4rfv",
)
#: How letters are written by those who think that nobody would think of it.
LEET = str.maketrans("@4310$5!7", "aaeiossit")
#: Characters that must be left, and different ones among all of them.
LEFT, DIFFERENT = 5, 5
#: Characters that must be left beside the name of the person.
LEFT_BESIDE_NAME = 10
#: Neighbours in a row that count as one stroke.
RUN = 3


def guessable(name: str, password: str) -> bool:
    """Say whether this password of the person `name` is among those that are tried first."""
    plain = password.lower()
    if len(set(plain)) < DIFFERENT:
        return True
    # A sentence may have the name in it; what is made of the name may not.
    needed = LEFT_BESIDE_NAME if name in plain else LEFT
    return min(_left(each.replace(name, "\0")) for each in (plain, plain.translate(LEET))) < needed


def _left(text: str) -> int:
    """How many characters are left when all that is common is taken out."""
    text = re.sub(r"[^\w\0]+|_+", "", text)
    for word in COMMON:
        text = text.replace(word, "\0")
    text = _without_rows(text)
    # 2024, 75, 1998: a number is a number.
    text = re.sub(r"\d+", "\0", text)
    # abcabcabc is abc.
    text = re.sub(r"(.{1,5}?)\1+", r"\1", text)
    return len(text.replace("\0", ""))


def _without_rows(text: str) -> str:
    kept, start = [], 0
    while start < len(text):
        length = max(_run(text, start, row) for each in ROWS for row in (each, each[::-1]))
        kept.append("\0" if length >= RUN else text[start])
        start += length if length >= RUN else 1
    return "".join(kept)


def _run(text: str, start: int, row: str) -> int:
    """How many characters from here on are next to each other in this row."""
    place, length = row.find(text[start]), 0
    while 0 <= place + length < len(row) and start + length < len(text):
        if text[start + length] != row[place + length]:
            break
        length += 1
    return length if place >= 0 else 0
