"""The people of a roster: a CSV file, or a group of the directory."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from essaim.config.documents import shown
from essaim.model import public_keys
from essaim.model.errors import InvalidError, Place, Problem, RejectedError
from essaim.model.names import NAME
from essaim.model.school import Person
from essaim.model.spelling import meant

COLUMNS = ("login", "name", "mail", "group", "uid", "home", "key")
#: Begins a column for the school's own use.
OWN = "#"
#: Stands before the name: many a school's export has it apart.
FIRST = "first"
#: The same in French, as schools export them.
ALIASES = {
    "identifiant": "login",
    "nom": "name",
    "courriel": "mail",
    "email": "mail",
    "classe": "group",
    "groupe": "group",
    "class": "group",
    "prénom": FIRST,
    "prenom": FIRST,
    "firstname": FIRST,
    "ssh_key": "key",
    "clé": "key",
    "cle": "key",
}
#: What Excel writes above a file to say what parts its cells.
_SEPARATOR = re.compile(r"sep=(.)\r?\n")
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
        raise InvalidError([_not_utf8(file, error)]) from error
    except OSError as error:
        raise InvalidError([Problem(f"{shown(file)} cannot be read: {error.strerror}")]) from error
    return _People(shown(file)).read(text)


def check_people(people: Sequence[Person], where: str) -> list[Person]:
    """See that people of a directory can be given machines; InvalidError names those who cannot."""
    checked = _People(where)
    for person in people:
        checked.take(person, None)
    checked.check()
    return checked.people


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
        above = _SEPARATOR.match(text)
        before = 1 if above else 0
        body = text[above.end() :] if above else text
        mark = above[1] if above else _delimiter(body)
        rows = csv.reader(io.StringIO(body, newline=""), delimiter=mark, strict=True)
        line = before  # the last that was read whole
        try:
            headings = self._headings(next(rows, []), before + 1)
            self.check()
            line = before + rows.line_num
            for row in rows:
                line = before + rows.line_num
                if any(cell.strip() for cell in row):
                    self._row(row, headings, line)
        except csv.Error as error:
            self.wrong(f"not CSV: {_csv_words(error)}", line + 1)
        self.check()
        return self.people

    def check(self) -> None:
        if self.problems:
            raise InvalidError(self.problems)

    def wrong(self, what: str, line: int | None, hint: str = "") -> None:
        # A group of a directory has no lines.
        place = Place(self.where, line) if line else None
        self.problems.append(Problem(what if line else f"{self.where}: {what}", place, hint))

    def _headings(self, cells: Sequence[str], line: int) -> list[str]:
        if not any(cell.strip() for cell in cells):
            self.wrong("the file is empty", line, f"its first line says {','.join(COLUMNS)}")
            return []
        known = [word for word in map(_column, cells) if word in (*COLUMNS, FIRST)]
        if not known:
            hint = f"put {','.join(COLUMNS)} above it, or those of them you have"
            self.wrong("the first line names no columns", line, hint)
            return []
        found: list[str] = []
        for cell in cells:
            word = _column(cell)
            if word not in (*COLUMNS, FIRST, OWN, ""):
                near = meant(word, [*COLUMNS, *ALIASES]) or f"columns are {', '.join(COLUMNS)}"
                self.wrong(
                    f"unknown column {cell.strip()!r}", line, f"{near} (# before it leaves it out)"
                )
            elif word in found and word not in (OWN, ""):
                self.wrong(f"the column {word} is there twice", line)
            found.append(word)
        if "login" not in found and not self.problems:
            self.wrong("there is no column login", line, "the first line says " + ",".join(COLUMNS))
        return found

    def _row(self, row: Sequence[str], headings: Sequence[str], line: int) -> None:
        if len(row) != len(headings):
            self.wrong(f"{len(row)} values, but {len(headings)} columns", line)
            return
        cells = [(key, cell.strip()) for key, cell in zip(headings, row, strict=True)]
        # Spreadsheets write columns that hold nothing: these may have no name.
        for lost in (cell for key, cell in cells if cell and not key):
            self.wrong(f"{lost!r} stands in a column without a name", line)
        said = {key: cell for key, cell in cells if key not in (OWN, "")}
        uid = said.pop("uid", "") or "0"
        if not uid.isdecimal() or int(uid) > HIGHEST_UID:
            self.wrong(f"uid {uid!r} is not a number of a user", line)
            return
        if first := said.pop(FIRST, ""):
            said["name"] = f"{first} {said.get('name', '')}".strip()
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
        self.people.append(replace(person, key=self._key(person, line)))

    def _key(self, person: Person, line: int | None) -> str:
        try:
            return public_keys.read(person.key) if person.key else ""
        except RejectedError as error:
            self.wrong(f"{person.login}: the key is {error.what}", line, error.hint)
            return ""


def _column(cell: str) -> str:
    """What a heading means: a column of ours, `OWN`, nothing, or a word that is unknown."""
    word = cell.strip().lower()
    return OWN if word.startswith(OWN) else ALIASES.get(word, word)


def _csv_words(error: csv.Error) -> str:
    if "unexpected end" in str(error):
        return 'a quotation mark (") is opened here and never closed'
    return str(error)


def _not_utf8(file: Path, error: UnicodeDecodeError) -> Problem:
    line = error.object[: error.start].count(b"\n") + 1
    wide = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
    known = "UTF-16" if wide else "WINDOWS-1252"
    hint = f'in Excel: Save As, "CSV UTF-8"; or: iconv -f {known} -t UTF-8 {file.name} > utf8.csv'
    return Problem(f"not UTF-8 (as {known}?)", Place(shown(file), line), hint)


def _delimiter(text: str) -> str:
    head = text.partition("\n")[0]
    return max(",;\t", key=head.count)
