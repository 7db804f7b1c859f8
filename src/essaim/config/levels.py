"""The chain of levels above a stack: each a file that overrides the one before.

A level may choose options in a `defaults` list like any Hydra config.  When two levels choose from
the same group the inner one counts, so the outer choice is left out before Hydra sees it.  The
site's own option is moved to the site's place in the chain: what a lab writes about a site must
override what the library says about it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from essaim.config.tree import BUILT_IN, Tree
from essaim.model.errors import InvalidError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from essaim.config.documents import Document

#: The config that Hydra starts from; it exists in memory only.
PRIMARY = "essaim-stack"


@dataclass(frozen=True, slots=True)
class Level:
    """One level: its document, and the choices of its `defaults` list that count."""

    name: str
    document: Document
    defaults: Sequence[Any]

    @property
    def config(self) -> str:
        """What Hydra calls it."""
        return f"essaim-level-{self.name}"


@dataclass(frozen=True, slots=True)
class Chain:
    """Every level of a stack for one site, outermost first."""

    site: str
    levels: Mapping[str, Level] = field(default_factory=dict)  #: by Hydra's name for them

    def primary(self) -> list[Any]:
        """Return the defaults list that puts the levels in order."""
        result: list[Any] = []
        for level in self.levels.values():
            # The site's option comes right before the site's level, or where that would be.
            if level.name not in ("built-in", "global") and {"site": self.site} not in result:
                result.append({"site": self.site})
            result.append(level.config)
        return result


def chain(tree: Tree, site: str) -> Chain:
    """Put the levels in order for a site; an empty name means the one the files choose."""
    documents = [(name, tree.read(file)) for name, file in _files(tree, site)]
    problems = [p for _, document in documents for p in check_defaults(document)]
    if problems:
        raise InvalidError(problems)
    chosen = {g: i for i, (_, doc) in enumerate(documents) for _, (g, _) in choices(doc)}
    if not site:
        site = tree.path_site() if documents[chosen["site"]][0] == "built-in" else ""
        site = site or str(dict(c for _, c in choices(documents[chosen["site"]][1]))["site"])
        return chain(tree, site)
    levels = [
        Level(name, doc, [item for item in _defaults(doc) if _counts(item, i, chosen)])
        for i, (name, doc) in enumerate(documents)
    ]
    return Chain(site, {level.config: level for level in levels})


def choices(document: Document) -> list[tuple[int, tuple[str, Any]]]:
    """List the groups a document chooses from and what it chooses, with their place in the list."""
    return [
        (index, (group, option))
        for index, item in enumerate(_defaults(document))
        if isinstance(item, dict)
        for key, option in item.items()
        if (group := group_of(key))
    ]


def group_of(key: str) -> str:
    """Name the group a key of a defaults list chooses from; nothing for `override` and packages."""
    word = key.removeprefix("optional ").strip().removeprefix("/")
    return "" if " " in word or "@" in word else word


def check_defaults(document: Document) -> list[Problem]:
    """Problems with the shape of a document's `defaults` list."""
    defaults = document.data.get("defaults", [])
    hint = "a list of file names and of {group: option}"
    if not isinstance(defaults, list):
        return [Problem("defaults must be a list", document.place(("defaults",)), hint)]
    return [
        Problem(f"{item!r} cannot stand in defaults", document.place(("defaults", str(i))), hint)
        for i, item in enumerate(defaults)
        if not _is_choice(item)
    ]


def _is_choice(item: Any) -> bool:
    if not isinstance(item, dict):
        return isinstance(item, str) and bool(item)
    if len(item) != 1:
        return False
    option = next(iter(item.values()))
    if isinstance(option, list):
        return all(isinstance(name, str) for name in option)
    return option is None or (isinstance(option, str) and bool(option))


def _defaults(document: Document) -> list[Any]:
    found = document.data.get("defaults")
    return found if isinstance(found, list) else []


def _counts(item: Any, index: int, chosen: Mapping[str, int]) -> bool:
    if not isinstance(item, dict):
        return True
    group = group_of(next(iter(item)))
    return group != "site" and chosen.get(group, index) == index


def _files(tree: Tree, site: str) -> list[tuple[str, Path]]:
    files = [("built-in", BUILT_IN)]
    top = tree.lab / "essaim.yaml"
    if top.is_file() and top != tree.stack:
        files.append(("global", top))
    if level := tree.site_level(site):
        files.append(("site", level))
    return [*files, *tree.inner_levels(), ("feature", tree.stack)]
