"""The people of a roster: a CSV file, or a group of the directory."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from essaim.config.documents import shown
from essaim.model.errors import InvalidError, Place, Problem
from essaim.model.names import NAME
from essaim.model.school import Person
from essaim.model.spelling import meant

COLUMNS = ("login", "name", "mail", "group", "uid", "home")
#: The same in French, as schools export them.
ALIASES = {
    "identifiant": "login",
    "nom": "name",
    "courriel": "mail",
    "email": "mail",
    "classe": "group",
    "groupe": "group",
    "class": "group",
}
LOGIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
MAIL = re.compile(r"[^@\s]+@[^@\s]+")
#: What a directory gives nobody, and no process runs as.
HIGHEST_UID = 2**31 - 1


def read_people(file: Path) -> list[Person]:
    """Read a roster's people; InvalidError names each line that is wrong."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        beside = [path.name for path in file.parent.glob("*.csv")] if file.parent.is_dir() else []
        hint = meant(file.name, beside, kind="there are")
        raise InvalidError([Problem(f"there is no file {shown(file)}", hint=hint)]) from error
    except UnicodeDecodeError as error:
        hint = "save it again as UTF-8"
        raise InvalidError([Problem(f"{shown(file)} is not UTF-8", hint=hint)]) from error
    except OSError as error:
        raise InvalidError([Problem(f"{shown(file)} cannot be read: {error.strerror}")]) from error
    return _People(shown(file)).read(text)


def check_people(people: Sequence[Person], where: str) -> list[Person]:
    """See that people of a directory can be given machines; InvalidError names those who cannot."""
    checked = _People(where)
    for person in people:
        checked.take(person, None)
    checked.check()
    return list(people)


def machine_of(login: str) -> str:
    """Name the machine of a login: what may not stand in a host's name becomes a dash."""
    word = re.sub(r"[^a-z0-9]+", "-", login).strip("-")[:38]
    return word if NAME.fullmatch(word) else f"s-{word}".rstrip("-")


class _People:
    """Gathers people and what is wrong with them."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.people: list[Person] = []
        self.problems: list[Problem] = []
        self._logins: dict[str, int | None] = {}
        self._machines: dict[str, str] = {}

    def read(self, text: str) -> list[Person]:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
        try:
            headings = self._headings(next(rows, []))
            self.check()
            for row in rows:
                if any(cell.strip() for cell in row):
                    self._row(row, headings, rows.line_num)
        except csv.Error as error:
            self.wrong(f"not CSV: {error}", rows.line_num)
        self.check()
        return self.people

    def check(self) -> None:
        if self.problems:
            raise InvalidError(self.problems)

    def wrong(self, what: str, line: int | None, hint: str = "") -> None:
        place = Place(self.where, line) if line else None
        self.problems.append(Problem(what, place, hint))

    def _headings(self, cells: Sequence[str]) -> list[str]:
        found: list[str] = []
        for cell in cells:
            word = cell.strip().lower()
            word = ALIASES.get(word, word)
            if word.startswith("#"):
                word = ""  # for the school's own use
            elif word not in COLUMNS:
                near = meant(word, [*COLUMNS, *ALIASES], kind="columns are")
                self.wrong(
                    f"unknown column {cell.strip()!r}", 1, near + "; # before it leaves it out"
                )
            elif word in found:
                self.wrong(f"the column {word} is there twice", 1)
            found.append(word)
        if "login" not in found and not self.problems:
            self.wrong("there is no column login", 1, "the first line says " + ",".join(COLUMNS))
        return found

    def _row(self, row: Sequence[str], headings: Sequence[str], line: int) -> None:
        if len(row) != len(headings):
            self.wrong(f"{len(row)} values, but {len(headings)} columns", line)
            return
        said = {key: cell.strip() for key, cell in zip(headings, row, strict=True) if key}
        uid = said.pop("uid", "") or "0"
        if not uid.isdecimal() or int(uid) > HIGHEST_UID:
            self.wrong(f"uid {uid!r} is not a number of a user", line)
            return
        self.take(Person(uid=int(uid), **said), line)

    def take(self, person: Person, line: int | None) -> None:
        """Check one person beside those before."""
        login = person.login
        if not LOGIN.fullmatch(login):
            hint = (
                f"did you mean {login.lower()}?"
                if LOGIN.fullmatch(login.lower())
                else ("small letters, digits, dot, dash, underscore; at most 32")
            )
            self.wrong(f"{login!r} is not a login" if login else "the login is missing", line, hint)
            return
        if login in self._logins:
            first = self._logins[login]
            self.wrong(f"{login} is there twice", line, f"first on line {first}" if first else "")
            return
        self._logins[login] = line
        other = self._machines.setdefault(machine_of(login), login)
        if other != login:
            what = f"{login} and {other} would have the same machine {machine_of(login)}"
            self.wrong(what, line, "put one of them on another roster")
        if person.mail and not MAIL.fullmatch(person.mail):
            self.wrong(f"{person.mail!r} is not an address for mail", line)
        if person.home and not person.home.startswith("/"):
            self.wrong(f"home {person.home!r} must begin with a slash", line)
        if any(not each.isprintable() for each in (person.name, person.group, person.home)):
            self.wrong(f"{login}: a character that cannot be printed", line)
        self.people.append(person)


def _delimiter(text: str) -> str:
    head = text.partition("\n")[0]
    return max(",;\t", key=head.count)
