"""YAML files read once, with the line of every key, and nothing guessed.

The dialect is YAML 1.2's core: `on`, `off`, `yes` and `no` are words, `12:30` is not a number, and
digits with a leading zero stay text, so that a file mode may be written without quotes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from essaim.config.secrets import NAME, SecretRef
from essaim.model.errors import InvalidError, Place, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from yaml import SafeLoader as _Base
else:
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser is ten times as fast

#: Where a value stands: keys and list indexes from the top of a file or of the composed stack.
Keys = tuple[str, ...]

_TAG = "tag:yaml.org,2002:"
_BOOLS = {"true": True, "false": False}
_SCALARS: Mapping[str, Callable[[str], Any]] = {
    _TAG + "str": str,
    _TAG + "null": lambda _: None,
    _TAG + "bool": lambda text: _BOOLS[text.lower()],
    _TAG + "int": lambda text: int(text, 0),
    _TAG + "float": float,
}


class _Loader(_Base):
    """Finds nodes and their lines; values are made by `_Reader`."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - PyYAML declares it so


for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+",
        list("-+0123456789."),
    ),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})$"), _first)


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML file: a mapping, and the line each of its parts begins on."""

    file: Path
    text: str
    data: dict[str, Any]
    lines: Mapping[Keys, int]
    name: str  #: the file's path as shown to people

    def place(self, path: Keys = ()) -> Place:
        """Point at that part of the file, or at the nearest part around it that is there."""
        while path and path not in self.lines:
            path = path[:-1]
        return Place(self.name, self.lines.get(path, 1))


def shown(file: Path) -> str:
    """Write a path as a person here would: relative when it is below the current directory."""
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)


def read(file: Path) -> Document:
    """Read a YAML file that holds a mapping; InvalidError lists what is wrong with it."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise InvalidError([Problem(f"{shown(file)} cannot be read: {why}")]) from exc
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as exc:
        raise InvalidError([_syntax(file, exc)]) from exc
    except yaml.YAMLError as exc:
        raise InvalidError([Problem(f"not YAML: {exc}", Place(shown(file), 1))]) from exc
    finally:
        loader.dispose()
    reader = _Reader(file)
    data = reader.value(node, ()) if node is not None else None
    if node is not None and not isinstance(data, dict | None):
        reader.wrong(node, "the file must hold a mapping: lines of `key: value`")
    if reader.problems:
        raise InvalidError(reader.problems)
    return Document(file, text, data or {}, reader.lines, shown(file))


def _syntax(file: Path, exc: yaml.MarkedYAMLError) -> Problem:
    mark = exc.problem_mark or exc.context_mark
    line = mark.line + 1 if mark else 1
    what = ", ".join(part for part in (exc.context, exc.problem) if part)
    return Problem(f"not YAML: {what}", Place(shown(file), line))


class _Reader:
    """Turns nodes into values, noting lines and gathering problems."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lines: dict[Keys, int] = {}
        self.problems: list[Problem] = []
        self._around: set[int] = set()

    def wrong(self, node: yaml.Node, what: str, hint: str = "") -> None:
        place = Place(shown(self.file), node.start_mark.line + 1)
        self.problems.append(Problem(what, place, hint))

    def value(self, node: yaml.Node, path: Keys) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if id(node) in self._around:
            self.wrong(node, "an alias that holds itself has no end")
            return None
        self._around.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            return [self.value(item, (*path, str(i))) for i, item in enumerate(node.value)]
        finally:
            self._around.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Keys) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.wrong(key_node, "a key must be a word")
            elif key_node.tag == _TAG + "merge":
                merged |= self._merged(value_node, path)
            elif key_node.value in own:
                first = self.lines[(*path, key_node.value)]
                self.wrong(key_node, f"the key {key_node.value} is already set on line {first}")
            else:
                below = (*path, key_node.value)
                self.lines[below] = key_node.start_mark.line + 1
                own[key_node.value] = self.value(value_node, below)
        return {**merged, **own}

    def _merged(self, node: yaml.Node, path: Keys) -> dict[str, Any]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        result: dict[str, Any] = {}
        for part in reversed(parts):
            value = self.value(part, path)
            if isinstance(value, dict):
                result |= value
            else:
                self.wrong(part, "<< merges mappings only")
        return result

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text: str = node.value
        if make := _SCALARS.get(node.tag):
            try:
                return make(text)
            except (ValueError, KeyError):
                self.wrong(node, f"{text!r} is not {node.tag.removeprefix(_TAG)}")
        elif node.tag != "!secret":
            self.wrong(node, f"unknown tag {node.tag}", "the only tag is !secret")
        elif NAME.fullmatch(text):
            return SecretRef(text)
        else:
            self.wrong(node, f"{text!r} cannot be the name of a secret", "letters, digits, _-./")
        return None
