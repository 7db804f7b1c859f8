"""A site on its own, as the stacks of a lab would see it."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import override

from essaim.config.build import blaming
from essaim.config.composition import hydrate
from essaim.config.documents import Document
from essaim.config.drivers import read_site
from essaim.config.resolve import resolve
from essaim.config.tree import Tree
from essaim.model.errors import InvalidError, UnknownError
from essaim.model.spelling import meant
from essaim.model.stacks import Site


class _Nobody(Tree):
    """A lab seen by a stack that says nothing, so that only the levels and the site do."""

    @override
    def read(self, file: Path) -> Document:
        if file == self.stack:
            return Document(file, "", {}, {}, self.where)
        return super().read(file)


def find_site(name: str, lab: str = ".") -> Site:
    """Find a site as a stack at that path sees it: `site/<name>.yaml` and its levels.

    UnknownError with a near spelling when there is none; InvalidError when it is wrong.
    """
    place = Path(lab).resolve()
    folder = place.parent if place.is_file() else place
    tree = _Nobody(lab, folder / "nobody.yaml")
    known = tree.options("site")
    if name not in known:
        hint = meant(name, known, kind="there are") or "a site is described in site/<name>.yaml"
        raise UnknownError(f"no site called {name}", hint=hint)
    composition = hydrate(tree, [f"site={name}"])
    problems = blaming(composition)
    values = resolve(composition.raw["site"], composition.provenance, problems)
    site = read_site({"name": name, **values}, problems)
    if site is None or problems.found:
        raise InvalidError(problems.found)
    return site
