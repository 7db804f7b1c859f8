"""The files of a lab: which stack is meant, which levels stand above it, where groups are found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from essaim.config.documents import Document, read, shown
from essaim.model.errors import InvalidError, Problem
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY = Path(__file__).resolve().parents[1] / "library"
BUILT_IN = Path(__file__).resolve().parent / "builtin.yaml"

#: Directories of a lab that hold something other than Hydra's groups.
_NOT_GROUPS = frozenset({"images", "roles", "secrets", "sites"})


class Tree:
    """One stack's view of its lab; every file is read at most once."""

    def __init__(self, where: str, stack: Path | None = None) -> None:
        self.where = where
        self.stack = stack or _stack_file(where)
        self.lab = _lab_root(self.stack.parent)
        #: Where groups, roles and images are looked for, nearest first.
        self.roots = tuple(dict.fromkeys((self.stack.parent, self.lab, LIBRARY)))
        self._documents: dict[Path, Document] = {}

    @classmethod
    def of_lab(cls, directory: Path) -> Tree:
        """Give the view of somebody who stands in a lab without meaning any of its stacks."""
        return cls(str(directory), directory.absolute() / "stack.yaml")

    def read(self, file: Path) -> Document:
        """Read a file, once."""
        if file not in self._documents:
            self._documents[file] = read(file)
        return self._documents[file]

    def files(self) -> tuple[Path, ...]:
        """Every file that was read: what the stack was composed from."""
        return tuple(self._documents)

    def find(self, relative: str) -> Path | None:
        """Find a file in the stack's directory, the lab, or the library."""
        if not relative or ".." in Path(relative).parts:
            return None
        return next((f for root in self.roots if (f := root / relative).is_file()), None)

    def names(self, folder: str, pattern: str) -> list[str]:
        """Name what matches in that folder of every root: stems of files, or directories."""
        found = {
            path.parent.name if "/" in pattern else path.stem
            for root in self.roots
            for path in (root / folder).glob(pattern)
        }
        return sorted(found)

    def is_group(self, group: str) -> bool:
        """Tell whether a directory of options of that name exists."""
        first = group.partition("/")[0]
        if not first or first in _NOT_GROUPS or ".." in Path(group).parts:
            return False
        names = self.names(group, "*.yaml")
        # A directory with a stack in it is a stack's, however many files lie beside it.
        return group == "site" or (bool(names) and "stack" not in names)

    def groups(self) -> list[str]:
        """Name the groups a stack here may choose from."""
        names = {path.parent.name for root in self.roots for path in root.glob("*/*.yaml")}
        return sorted(name for name in names | {"site"} if self.is_group(name))

    def options(self, group: str) -> list[str]:
        """Name the options of a group; a site may exist through its level alone."""
        if not self.is_group(group):
            return []
        found = set(self.names(group, "*.yaml"))
        if group == "site":
            found |= {file.parent.name for file in (self.lab / "sites").glob("*/site.yaml")}
        return sorted(found)

    def site_level(self, site: str) -> Path | None:
        """Return the file of a site's level, when the lab has one."""
        file = self.lab / "sites" / site / "site.yaml"
        return file if site and file.is_file() else None

    def path_site(self) -> str:
        """Name the site whose directory the stack's file lies in, if any."""
        return next(iter(self._inside()), "")

    def inner_levels(self) -> Iterator[tuple[str, Path]]:
        """List the instance and project levels, which come from where the stack's file lies."""
        names = self._inside()
        for depth, level in ((2, "instance"), (3, "project")):
            file = self.lab.joinpath("sites", *names[:depth], f"{level}.yaml")
            if len(names) >= depth and file.is_file() and file != self.stack:
                yield level, file

    def _inside(self) -> tuple[str, ...]:
        try:
            return self.stack.parent.relative_to(self.lab / "sites").parts
        except ValueError:
            return ()


def _stack_file(where: str) -> Path:
    path = Path(where).absolute()
    file = path / "stack.yaml" if path.is_dir() else path
    if file.is_file():
        return file.parent.resolve() / file.name
    what = f"there is no stack at {where}"
    if path.is_dir():
        what = f"{where} is not a stack: it holds no stack.yaml"
    beside = path.parent.glob("*/stack.yaml") if path.parent.is_dir() else ()
    stacks = [shown(other.parent) for other in beside]
    raise InvalidError([Problem(what, hint=meant(shown(path), stacks, kind="stacks there"))])


def _lab_root(start: Path) -> Path:
    """Find the nearest directory upwards that holds essaim.yaml; the stack's own when none does."""
    for directory in (start, *start.parents):
        if (directory / "essaim.yaml").is_file():
            return directory
    return start
