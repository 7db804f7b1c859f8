"""What could be typed next.  Files of this computer are read, and nothing is asked or changed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from essaim.cli.completion import known
from essaim.cli.completion.tree import Node, load

#: Instead of words: the shell itself completes names of files, or of folders.
FILES, FOLDERS = ":files", ":folders"
#: Characters at which bash begins a new word.
_BREAKS = "=:"

#: A word, and what it is.
Word = tuple[str, str]


def split(line: str) -> list[str]:
    """Split a line as a shell does; the last word is the one being typed, perhaps empty."""
    for quote in ("", "'", '"'):
        try:
            words = shlex.split(line + quote)
        except ValueError:
            continue
        if not quote and (line.endswith((" ", "\t")) or not words):
            words.append("")
        return words[1:] or [""]
    return [""]


def complete(words: Sequence[str]) -> list[Word]:
    """Return what the last of these words could become; they come after the program's name."""
    *before, current = words
    node, waiting, given = _walk(load(), before)
    if waiting is not None:
        found = _values(waiting, current, given)
    elif current.startswith("-") and "--" not in before:
        found = [
            (name, option["help"])
            for option in node["options"]
            for name in option["names"]
            if name.startswith("--") or current in ("-", name)
        ]
    elif node["commands"]:
        found = [(name, each["help"]) for name, each in node["commands"].items() if not given]
    else:
        found = _arguments(node, current, given)
    return _beginning(found, current)


def in_bash(found: Sequence[Word], current: str) -> list[Word]:
    """Leave out what bash takes for earlier words: `scheduler=sl` is three to it."""
    cut = max(current.rfind(each) for each in _BREAKS) + 1
    return [(value if value in (FILES, FOLDERS) else value[cut:], help_) for value, help_ in found]


def _walk(node: Node, words: Sequence[str]) -> tuple[Node, dict[str, Any] | None, list[str]]:
    """Find the command, the option whose value comes next, and the arguments so far."""
    given: list[str] = []
    waiting: dict[str, Any] | None = None
    only_arguments = False
    for word in words:
        if waiting is not None:
            waiting = None
        elif word == "--":
            only_arguments = True
        elif word.startswith("-") and not only_arguments:
            option = next((each for each in node["options"] if word in each["names"]), None)
            waiting = option if option and not option["flag"] else None
        elif word in node["commands"]:
            node, given = node["commands"][word], []
        else:
            given.append(word)
    return node, waiting, given


def _arguments(node: Node, current: str, given: Sequence[str]) -> list[Word]:
    arguments = node["arguments"]
    if not arguments:
        return []
    position = len(given)
    if position >= len(arguments):
        if not arguments[-1]["many"]:
            return []
        position = len(arguments) - 1
    return _values(arguments[position], current, given)


def _values(about: dict[str, Any], current: str, given: Sequence[str]) -> list[Word]:
    """Values of an option or argument, by what its help calls it."""
    if about["choices"]:
        return [(each, "") for each in about["choices"]]
    named = about["metavar"] or about["name"].upper()
    found = _of_stacks(named, current, given, described="stack.yaml" in about["help"])
    for word, source in _SOURCES.items():
        if word in named and ".csv" not in named:
            found += source(given)
    if "SRC" in named and "LEASE" in about["help"]:
        found += [*_machines(current), *_plain(known.leases(), "lease")]
    if any(word in named for word in ("FILE", ".csv", "PATH", "WORKLOAD", "SRC", "DST")):
        found.append((FILES, ""))
    if "DIR" in named:
        found.append((FOLDERS, ""))
    return found


def _of_stacks(named: str, current: str, given: Sequence[str], *, described: bool) -> list[Word]:
    """Keys, stacks and machines; a stack is `described` in a folder, or known by its name."""
    if "KEY" in named:
        return _keys(given[0], current, only_names="=" not in named) if given else []
    if named.strip("[]") == "STACK":
        return [(FOLDERS, "")] if described else _plain(known.stacks(), "stack")
    return _machines(current) if "STACK" in named else []


def _logins(given: Sequence[str]) -> list[Word]:
    return _plain(known.logins(given[0]), "student") if given else []


def _rosters(given: Sequence[str]) -> list[Word]:
    return [] if given else _plain(known.rosters(), "roster")


_SOURCES: dict[str, Callable[[Sequence[str]], list[Word]]] = {
    "LEASE": lambda _given: _plain(known.leases(), "lease"),
    "RUN": lambda _given: known.runs(),
    "ROSTER": _rosters,
    "LOGIN": _logins,
    "SITE": lambda given: _plain(known.choices(given[0] if given else ".", "site"), "site"),
}


def _machines(current: str) -> list[Word]:
    """Stacks first, and the machines of one when its name is typed."""
    stack, inside, _ = current.partition("/")
    stacks = known.stacks()
    if inside or stacks == [stack]:
        return _plain(known.machines(stack), "machine")
    return [(f"{name}/", "stack") for name in stacks]


def _keys(stack: str, current: str, *, only_names: bool) -> list[Word]:
    """The keys of a stack that is described in a folder, or the values of one."""
    key, typed, _ = current.partition("=")
    if typed:
        return [(f"{key}={value}", "") for value in known.choices(stack, key)]
    end = "" if only_names else "="
    return [(f"{name}{end}", about) for name, about in known.keys(stack)]


def _plain(names: Iterable[str], what: str) -> list[Word]:
    return [(name, what) for name in names]


def _beginning(found: Sequence[Word], current: str) -> list[Word]:
    chosen = {
        value: about
        for value, about in found
        if value in (FILES, FOLDERS) or value.startswith(current)
    }
    return list(chosen.items())
