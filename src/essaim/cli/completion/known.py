"""Names this computer knows, read straight from its files: no Hydra, no SQLAlchemy, no network."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_LIBRARY = Path(__file__).parents[2] / "library"
#: A top-level key of a YAML file.
_KEY = re.compile(r"^([a-z_]\w*):[ \t]*(.*)", re.MULTILINE)
_STRUCTURE = frozenset({"defaults", "topology", "vars", "hints"})
_RUNS = 20


def stacks() -> list[str]:
    """Names of the stacks there are."""
    return _column("SELECT name FROM stack ORDER BY name")


def machines(stack: str) -> list[str]:
    """Machines of a stack, `STACK/MACHINE`, in the order of their numbers."""
    found = _column("SELECT name FROM machine WHERE stack = ?", stack)
    return sorted(found, key=lambda name: (len(name), name))


def rosters() -> list[str]:
    """Names of the rosters there are."""
    return _column("SELECT name FROM roster ORDER BY name")


def logins(roster: str) -> list[str]:
    """Logins of a roster's students."""
    return _column("SELECT login FROM student WHERE roster = ? ORDER BY login", roster)


def runs() -> list[tuple[str, str]]:
    """The newest runs, with what they were about."""
    query = (
        "SELECT id, workflow || ' ' || subject || ', ' || state FROM run WHERE parent IS NULL"
        " ORDER BY created_at DESC LIMIT ?"
    )
    return [(str(name), str(about)) for name, about in _rows(query, _RUNS)]


def leases() -> list[str]:
    """Leases that were rented or looked at from here."""
    return sorted(file.stem for file in (_home() / "client/leases").glob("l-*.json"))


def keys(stack: str) -> list[tuple[str, str]]:
    """Keys of a described stack, with the values they have; config groups first."""
    file = _file(stack)
    if file is None:
        return []
    text = file.read_text(encoding="utf-8", errors="replace")
    found = [(group, "one of " + ", ".join(choices(stack, group))) for group in _groups(file)]
    named = {name for name, _ in found}
    for name, value in _KEY.findall(text):
        if name not in _STRUCTURE and name not in named:
            shown = value.partition(" #")[0].strip()
            found.append((name, f"now {shown}" if shown else ""))
    return found


def choices(stack: str, group: str) -> list[str]:
    """Options of a config group of a described stack: files beside it, of its lab, and ours."""
    if not group.isidentifier():
        return []
    found = {each.stem for folder in _folders(_file(stack)) for each in _options(folder / group)}
    return sorted(found)


def _groups(file: Path) -> list[str]:
    return sorted(
        {
            group.name
            for folder in _folders(file)
            for group in (folder.iterdir() if folder.is_dir() else ())
            if group.name in _options_of(file) and any(_options(group))
        }
    )


def _options_of(file: Path) -> set[str]:
    """The groups a stack chooses from, in its defaults."""
    text = file.read_text(encoding="utf-8", errors="replace")
    found = re.search(r"^defaults:(.*?)(?=^\w|\Z)", text, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"([a-z_]\w*)\s*:", found[1])) if found else set()


def _options(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.yaml")) if folder.is_dir() else []


def _folders(file: Path | None) -> list[Path]:
    """Where config groups may lie: beside the stack, above it up to the lab, in the library."""
    if file is None:
        return [Path.cwd(), _LIBRARY]
    found = [file.parent]
    while not (found[-1] / "essaim.yaml").exists() and found[-1] != found[-1].parent:
        found.append(found[-1].parent)
    return [*(found if (found[-1] / "essaim.yaml").exists() else found[:1]), _LIBRARY]


def _file(stack: str) -> Path | None:
    place = Path(stack).expanduser().absolute()
    place = place / "stack.yaml" if place.is_dir() else place
    return place if place.is_file() else None


def _home() -> Path:
    from essaim.bootstrap import state_home

    return state_home(os.environ)


def _column(query: str, *values: str) -> list[str]:
    return [str(row[0]) for row in _rows(query, *values)]


def _rows(query: str, *values: str | int) -> list[tuple[object, ...]]:
    """Rows of the local database; none of a server's, which would have to be asked."""
    import sqlite3

    address = os.environ.get("ESSAIM_DATABASE", "")
    if address and not address.startswith("sqlite:///"):
        return []
    file = Path(address.removeprefix("sqlite:///")) if address else _home() / "essaim.db"
    if not file.is_file():
        return []
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=0.2)) as open_,
    ):
        return open_.execute(query, values).fetchall()
    return []
