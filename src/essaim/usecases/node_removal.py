"""Take nodes out of the fleet: leases move or end, then the nodes are forgotten."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from essaim.model.errors import RejectedError
from essaim.model.fleet import NodeState
from essaim.plan.placement import fits

if TYPE_CHECKING:
    from essaim.model.fleet import Lease, Node
    from essaim.usecases.services import Services

LOOK_EVERY = 0.1
#: Seconds that leases have to move, and to end.
MOVE_WITHIN, END_WITHIN = 120.0, 60.0


class NodeRemoval:
    """The removal of some nodes, which `who` has asked for.

    It writes to the store what is to happen.  Whoever serves carries that out; this waits.
    """

    def __init__(self, services: Services, nodes: Sequence[Node], who: str) -> None:
        self._services, self.nodes, self._who = services, nodes, who

    def drain(self, *, on: bool = True) -> None:
        """Let nobody rent the nodes, or again."""
        for node in self.nodes:
            self._services.fleet.drain(node.id, on=on)

    def leases(self, nodes: Collection[Node] | None = None) -> list[Lease]:
        """List the open leases that have one of the nodes, or of these among them."""
        chosen = self.nodes if nodes is None else nodes
        ids = {node.id for node in chosen}
        keys = {key for node in chosen if (key := self._now(node).lease)}
        found = [self._services.leases.get(key) for key in sorted(keys)]
        return [each for each in found if each and each.state.open and ids & set(each.nodes)]

    def split(self) -> tuple[list[Node], list[Node]]:
        """Tell rented nodes whose lease can move from those for which no other node is free."""
        fleet = self._services.fleet
        out, now, fresh = {node.id for node in self.nodes}, fleet.now(), fleet.policy.fresh
        free = [node for node in fleet.list(states=[NodeState.READY]) if node.id not in out]
        move: list[Node] = []
        end: list[Node] = []
        for node in self.nodes:
            for lease in self.leases([node]):
                fitting = [each for each in free if fits(each, lease.wish, now, fresh)]
                (move if fitting else end).append(node)
                free = [each for each in free if each not in fitting[:1]]
        return move, end

    def move(self, nodes: Collection[Node], *, within: float = MOVE_WITHIN) -> None:
        """Move the leases off these of the nodes, with their homes; RejectedError if one stays."""
        reason = "its machine is being removed"
        for node in nodes:
            for lease in self.leases([node]):
                self._services.leases.migrate(lease.id, node.id, reason=reason, who=self._who)
        if not _wait(lambda: not self.leases(nodes), within):
            names = ", ".join(lease.id for lease in self.leases(nodes))
            raise RejectedError(
                f"still not moved after {within:g} s: {names}",
                hint="essaim runs says why; essaim release LEASE ends one",
            )

    def finish(self, why: str, *, within: float = END_WITHIN) -> list[str]:
        """End the leases that are left, forget the nodes; gives the leases that ended.

        What does not end in time, as its machine is gone already, is left to the controllers.
        """
        leases = self.leases()
        for lease in leases:
            self._services.leases.release(lease.id, reason=why, who=self._who)
        _wait(lambda: not self.leases() and not self._being_cleaned(), within)
        for node in self.nodes:
            self._services.fleet.remove(node.id)
        return [lease.id for lease in leases]

    def _being_cleaned(self) -> bool:
        return any(self._now(node).state is NodeState.CLEANING for node in self.nodes)

    def _now(self, node: Node) -> Node:
        return self._services.fleet.get(node.id) or node


def _wait(holds: Callable[[], bool], within: float) -> bool:
    deadline = time.monotonic() + within
    while not (true := holds()) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
    return true
