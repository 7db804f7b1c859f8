"""Which nodes a wish gets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from essaim.model.fleet import Node, NodeState, Wish


def suits(node: Node, wish: Wish) -> bool:
    """Whether a node is of a kind that serves a wish, whatever its state."""
    return (
        node.cores >= wish.cores
        and node.memory >= wish.memory
        and wish.site in ("", node.site)
        and wish.labels.items() <= node.labels.items()
    )


def shortage(wish: Wish, nodes: Iterable[Node]) -> tuple[str, dict[str, Any]] | None:
    """Why these nodes could not serve a wish even if all were free; None when they could.

    Gives the key of a sentence and its fields.  Nodes count whatever their state: one that is
    lost or drained may come back.  With no node at all nobody can tell: they may be about to join.
    """
    known = list(nodes)
    if not known:
        return None
    alike = [node for node in known if suits(node, replace(wish, cores=1, memory=0))]
    if not alike:
        labels = [f"{name}={value}" for name, value in sorted(wish.labels.items())]
        return "rent.no_kind", {"kind": " ".join([*([wish.site] if wish.site else []), *labels])}
    able = sum(suits(node, wish) for node in alike)
    if not able:
        largest = max(alike, key=lambda node: (node.cores, node.memory))
        key = "rent.too_large_one" if largest.cores == 1 else "rent.too_large"
        return key, {"most_cores": largest.cores, "most_memory": largest.memory}
    if able < wish.count:
        return "rent.too_many", {"count": wish.count, "able": able}
    return None


def well(node: Node, now: int, fresh: float) -> bool:
    """Whether a node may be rented out now; it must have been seen within `fresh` seconds."""
    return (
        node.state is NodeState.READY
        and not node.drained
        and now - node.beat_at <= fresh * 1000
        and node.failures == 0
    )


def fits(node: Node, wish: Wish, now: int, fresh: float) -> bool:
    """Whether a node may serve a wish now; `fresh` is the seconds since it must have been seen."""
    return well(node, now, fresh) and suits(node, wish)


def place(wish: Wish, nodes: Iterable[Node], now: int, fresh: float) -> tuple[Node, ...] | None:
    """Choose nodes for all of a wish, or None.

    The smallest that fit, so that large ones stay free for those who need them; among equals the
    idlest, to a whole unit of load; then in the order given, so that many who choose at the same
    moment may each be given another order.
    """
    able = [node for node in nodes if fits(node, wish, now, fresh)]
    if len(able) < wish.count:
        return None
    able.sort(key=lambda node: (node.cores, node.memory, int(node.load)))
    return tuple(able[: wish.count])
