"""Which nodes a wish gets."""

from __future__ import annotations

from collections.abc import Iterable

from essaim.model.fleet import Node, NodeState, Wish


def suits(node: Node, wish: Wish) -> bool:
    """Whether a node is of a kind that serves a wish, whatever its state."""
    return (
        node.cores >= wish.cores
        and node.memory >= wish.memory
        and wish.site in ("", node.site)
        and wish.labels.items() <= node.labels.items()
    )


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
