"""Where each value of a composed stack comes from, and what it overrode."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from essaim.config.documents import Keys
from essaim.model.errors import Place, UnknownError
from essaim.model.spelling import near

COMMAND_LINE = "command line"
MISSING = "???"  #: a value that somebody must still set

#: A reference to another key; resolvers such as `${oc.env:HOME}` name none.
_REFERENCE = re.compile(r"\$\{\s*([^${}:]+?)\s*\}")


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that was given to a key; only one of a key's settings wins."""

    key: str
    value: Any
    level: str
    place: Place | None
    wins: bool


@dataclass(frozen=True, slots=True)
class Origin:
    """Who set something: a line of a file, or an argument on the command line."""

    level: str
    place: Place | None = None
    argument: str = ""


#: Says who set the part of a value that stands at a path.
Blame = Callable[[Keys], Origin]


@dataclass(slots=True)
class _Node:
    """One key: all that was ever given to it, oldest first, and what is below it."""

    path: Keys
    below: dict[str, _Node] = field(default_factory=dict)
    given: list[tuple[Any, Origin]] = field(default_factory=list)
    origin: Origin | None = None  #: of what is there now; None when nothing is
    leaf: bool = False
    items: dict[Keys, Origin] = field(default_factory=dict)  #: of the parts of a list

    def set(self, value: Any, origin: Origin, leaf: bool) -> None:  # noqa: FBT001 - private
        if leaf:
            self.given.append((value, origin))
            for node in self.below.values():
                node.bury()
        self.origin, self.leaf, self.items = origin, leaf, {}

    def bury(self) -> None:
        self.origin, self.leaf, self.items = None, False, {}
        for node in self.below.values():
            node.bury()

    def child(self, key: str) -> _Node:
        return self.below.setdefault(key, _Node((*self.path, key)))

    def leaves(self) -> Iterator[_Node]:
        if self.leaf:
            yield self
        elif self.origin:
            for node in self.below.values():
                yield from node.leaves()

    def every(self) -> Iterator[_Node]:
        yield self
        for node in self.below.values():
            yield from node.every()

    def settings(self) -> Iterator[Setting]:
        key = ".".join(self.path)
        for age, (value, origin) in enumerate(reversed(self.given)):
            yield Setting(key, value, origin.level, origin.place, self.leaf and age == 0)

    @property
    def value(self) -> Any:
        return self.given[-1][0] if self.leaf else None


class Provenance:
    """A record of every setting, kept by replaying in order what Hydra merges."""

    def __init__(self) -> None:
        self._top = _Node((), origin=Origin("built-in"))
        self._choices: dict[str, list[Setting]] = {}
        #: A list met a mapping, which cannot be merged: where, who brought it, who was there.
        self.clashes: list[tuple[Keys, Origin, Origin]] = []

    # What composition tells.

    def merge(self, path: Keys, value: Any, blame: Blame) -> None:
        """Note a value merged over what is there."""
        node = self._top
        for key in path:
            if not node.origin or node.leaf:
                node.set(None, blame(node.path), leaf=False)
            node = node.child(key)
        self._merge(node, value, blame)

    def _merge(self, node: _Node, value: Any, blame: Blame) -> None:
        if node.origin and _clash(node.value if node.leaf else {}, value):
            self.clashes.append((node.path, blame(node.path), node.origin))
        if isinstance(value, dict) and (value or (node.origin and not node.leaf)):
            node.set(None, blame(node.path), leaf=False)
            for key, below in value.items():
                self._merge(node.child(key), below, blame)
        elif value != MISSING or not node.origin:  # OmegaConf keeps a known value over a missing
            node.set(value, blame(node.path), leaf=True)
            node.items = {path: blame((*node.path, *path)) for path in _parts(value)}

    def delete(self, path: Keys) -> None:
        """Note that a key and all below it were taken away."""
        if node := self._find(path):
            node.bury()

    def choose(self, group: str, settings: Sequence[Setting]) -> None:
        """Note which option of a group was chosen, the winner first."""
        self._choices[group] = list(settings)

    def settle(self, leaves: Mapping[Keys, Any]) -> None:
        """Make the record agree with the composed values, where Hydra knew better."""
        for path, value in leaves.items():
            node = self._find(path)
            if node and node.leaf and node.value == value:
                continue
            origin = self.origin(path) or Origin("feature")
            if node:
                node.bury()
            self.merge(path, value, blame_all(origin))
        for node in [node for node in self._top.leaves() if node.path not in leaves]:
            node.bury()

    # What others ask.

    def has(self, path: Keys) -> bool:
        """Tell whether there is a value, or values, at that path."""
        node = self._find(path)
        return bool(node and node.origin)

    def is_mapping(self, path: Keys) -> bool:
        """Tell whether there are keys below that path."""
        node = self._find(path)
        return bool(node and node.origin and not node.leaf)

    def leads_to(self, path: Keys) -> bool:
        """Tell whether a path is there, or in a list, or in what an interpolation stands for."""
        return self.has(path) or any(
            node.leaf and _holds(node.value, path[end:])
            for end in range(1, len(path))
            if (node := self._find(path[:end])) is not None
        )

    def leaves(self) -> dict[Keys, Any]:
        """Every key that has a value of its own, with that value as it was written."""
        return {node.path: node.value for node in self._top.leaves()}

    def guess(self, path: Keys, others: Sequence[str] = ()) -> str:
        """Guess the key that was meant: the first part that does not exist, spelt better."""
        node = self._top
        for depth, key in enumerate(path):
            if key not in node.below or not node.below[key].origin:
                beside = [name for name, other in node.below.items() if other.origin]
                better = near(key, [*beside, *(() if depth else others)])
                return ".".join((*path[:depth], better, *path[depth + 1 :])) if better else ""
            node = node.below[key]
        return ""

    def origin(self, path: Keys) -> Origin | None:
        """Who set that path, or else the nearest thing around it."""
        node, found = self._top, None
        for depth, key in enumerate(path):
            if node.leaf:
                rest = path[depth:]
                return next(
                    (o for n in range(len(rest), 0, -1) if (o := node.items.get(rest[:n]))), found
                )
            if key not in node.below or not node.below[key].origin:
                break
            node = node.below[key]
            found = node.origin
        return found

    def culprit(self, path: Keys) -> Origin | None:
        """Name who is to blame for a value; interpolations are followed to what they name."""
        seen: set[Keys] = set()
        while path not in seen:
            seen.add(path)
            value = self._raw(path)
            match = _REFERENCE.fullmatch(value.strip()) if isinstance(value, str) else None
            if not match or not self.has(target := absolute(match[1], path)):
                break
            path = target
        return self.origin(path)

    def _raw(self, path: Keys) -> Any:
        """Return the value at a path as it was written, also inside a list."""
        for end in range(len(path), 0, -1):
            node = self._find(path[:end])
            if node is not None and node.leaf:
                return _part(node.value, path[end:])
        return None

    def levels(self, key: str) -> set[str]:
        """Name the levels that ever set something at or below a top-level key."""
        node = self._find((key,))
        return (
            {origin.level for below in node.every() for _, origin in below.given} if node else set()
        )

    def named(self) -> set[str]:
        """Name the top-level keys that interpolations use, overridden ones included."""
        return {
            target[0]
            for node in self._top.every()
            for value, _ in node.given
            for name in _names(value)
            if (target := absolute(name, node.path))
        }

    def explain(self, key: str) -> list[Setting]:
        """Say where a key's value comes from: the winner first, then what it overrode.

        For an interpolation, the keys it names follow; for a subtree, the settings of all its
        leaves; for a group, which option was chosen.  UnknownError when there is no such key.
        """
        found = list(self._explain(split(key), set()))
        if not found:
            hint = f"did you mean {guess}?" if (guess := self.guess(split(key))) else ""
            raise UnknownError(f"there is no key {key} in this stack", hint=hint)
        return found

    def _explain(self, path: Keys, seen: set[Keys]) -> Iterator[Setting]:
        nodes, rest = self._matching(path)
        for node in nodes:
            if (*node.path, *rest) in seen:
                continue
            seen.add((*node.path, *rest))
            yield from node.settings()
            for name in _names(node.value):
                yield from self._explain((*absolute(name, node.path), *rest), seen)
        group = path[0] if path else ""
        if nodes and group in self._choices and (group, "") not in seen:
            seen.add((group, ""))
            yield from self._choices[group]

    def _matching(self, path: Keys) -> tuple[list[_Node], Keys]:
        """Find the leaf at a path, or those below it, or the one it is a part of and the rest."""
        node = self._find(path)
        if node and (node.leaf or (node.given and not node.origin)):
            return [node], ()
        if node and path and (below := list(node.leaves())):
            return below, ()
        for end in range(len(path) - 1, 0, -1):
            node = self._find(path[:end])
            if node and node.leaf and _holds(node.value, path[end:]):
                return [node], path[end:]
        joined = ".".join(path)  # a key may itself hold dots
        return [node for node in self._top.leaves() if ".".join(node.path) == joined], ()

    def _find(self, path: Keys) -> _Node | None:
        node: _Node | None = self._top
        for key in path:
            node = node.below.get(key) if node else None
        return node


def blame_all(origin: Origin) -> Blame:
    """Blame the same one for everything."""
    return lambda _: origin


def split(key: str) -> Keys:
    """Read a key as people write it: `a.b`, `a.list.0` or `a.list[0]`."""
    return tuple(part for part in re.split(r"[.\[\]]+", key) if part)


def absolute(name: str, at: Keys) -> Keys:
    """Return the path an interpolation names; leading dots count from where it stands."""
    dots = len(name) - len(name.lstrip("."))
    base = at[: max(len(at) - dots, 0)] if dots else ()
    return (*base, *split(name))


def _names(value: Any) -> Iterator[str]:
    """Find the keys that interpolations anywhere in a value name."""
    if isinstance(value, str):
        yield from _REFERENCE.findall(value)
    elif isinstance(value, dict | list):
        for below in value.values() if isinstance(value, dict) else value:
            yield from _names(below)


def _parts(value: Any, path: Keys = ()) -> Iterator[Keys]:
    """Where the parts of a list stand below it."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, below in pairs:
            yield (*path, str(key))
            yield from _parts(below, (*path, str(key)))


def _clash(one: Any, other: Any) -> bool:
    return {type(one), type(other)} == {dict, list}


def _part(value: Any, rest: Keys) -> Any:
    for key in rest:
        if isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, dict):
            value = value.get(key)
        else:
            return None
    return value


def _holds(value: Any, rest: Keys) -> bool:
    """Tell whether a value has such a part, or may have it once it is interpolated."""
    if isinstance(value, str):
        return bool(_REFERENCE.fullmatch(value.strip()))
    return isinstance(value, list) and rest[0].isdigit() and int(rest[0]) < len(value)
