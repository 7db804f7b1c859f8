"""The way in: a stack by its path, with arguments, as a checked and frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from essaim.config import overrides as arguments
from essaim.config.build import blaming, build
from essaim.config.composition import hydrate
from essaim.config.levels import chain
from essaim.config.resolve import resolve
from essaim.config.source import Files, reading
from essaim.config.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from essaim.config.provenance import Provenance
    from essaim.model.stacks import Stack


@dataclass(frozen=True, slots=True)
class Composed:
    """A stack, the values it was made of, and where each of them comes from."""

    stack: Stack
    values: dict[str, Any]  #: resolved; secrets are `SecretRef`s
    provenance: Provenance
    lab: Path  #: the lab's root directory
    file: Path  #: of the stack
    files: tuple[Path, ...]  #: every YAML file that was read for it


def compose(where: str, overrides: Sequence[str] = ()) -> Composed:
    """Compose the stack at a path (a directory with stack.yaml, or a YAML file).

    InvalidError lists everything that is wrong with it, each with its file and line.
    """
    tree = Tree(where)
    composition = hydrate(tree, overrides)
    problems = blaming(composition)
    values = resolve(composition.raw, composition.provenance, problems)
    problems.check()
    stack = build(composition, values, overrides, problems)
    return Composed(stack, values, composition.provenance, tree.lab, tree.stack, tree.files())


def sweep(where: str, overrides: Sequence[str]) -> list[tuple[str, ...]]:
    """List the arguments of every stack a sweep stands for: `nodes=2,4` stands for two."""
    tree = Tree(where)
    with reading(Files(tree, chain(tree, ""))) as loader:
        return arguments.combinations(arguments.parse(overrides, loader))
