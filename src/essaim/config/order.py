"""Orders that cannot be followed: circles among groups and among roles."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Node = TypeVar("Node")


def circle(graph: Mapping[Node, Iterable[Node]]) -> list[Node]:
    """Return the nodes of a circle, the first one repeated at the end; empty when there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        found: list[Node] = exc.args[1]
        return found[::-1]  # graphlib lists what comes first, first
    return []
