"""Notices lost nodes, moves their leases, and takes back nodes that return."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from essaim.model.errors import EssaimError
from essaim.model.fleet import Node, NodeState
from essaim.plan.health import Lost, blind, verdict
from essaim.usecases import leases as leasing

if TYPE_CHECKING:
    from essaim.usecases.services import Services

log = logging.getLogger(__name__)

#: The most seconds a node has to answer `true` over SSH: a slow check must not delay the next.
ANSWER_WITHIN = 5.0
SERVING = (NodeState.READY, NodeState.HELD)


class Health:
    """Every interval: ask each serving node over SSH, judge all, act on the judgement."""

    name = "health"

    def __init__(self, services: Services) -> None:
        self._services = services
        self._held_back = False

    def reconcile(self) -> float:
        """Check, judge, move."""
        services = self._services
        policy = services.fleet.policy
        self._check(services.fleet.list(states=SERVING))
        serving = services.fleet.list(states=SERVING)
        now = services.fleet.now()
        verdicts = [verdict(node, now, policy) for node in serving]
        if blind(serving, verdicts, policy):
            self._hold_back(sum(isinstance(each, Lost) for each in verdicts), len(serving))
        else:
            self._held_back = False
            for node, each in zip(serving, verdicts, strict=True):
                if isinstance(each, Lost):
                    services.fleet.move(node.id, NodeState.LOST, of=SERVING, reason=each.reason)
            for lease, node_id in services.leases.stranded():
                leasing.migrate(services, lease.id, node_id, "its machine was lost")
        self._welcome(now)
        return policy.interval

    def _check(self, nodes: list[Node]) -> None:
        targets = [self._services.lending.target(node) for node in nodes]
        within = min(ANSWER_WITHIN, self._services.fleet.policy.interval)
        found = self._services.remote.fan_out(targets, ["true"], within=within, width=64)
        for target, result in found:
            well = not isinstance(result, EssaimError) and result.exit_code == 0
            self._services.fleet.checked(target.name.machine, well=well)

    def _hold_back(self, lost: int, of: int) -> None:
        if not self._held_back:
            log.error(
                "%d of %d nodes fail at once: perhaps we are the ones cut off; nothing is moved "
                "until a person has looked, or they answer again",
                lost,
                of,
            )
        self._held_back = True

    def _welcome(self, now: int) -> None:
        """A lost node that is heard of again is cleaned before it serves."""
        fresh = self._services.fleet.policy.interval * 1500
        for node in self._services.fleet.list(states=[NodeState.LOST]):
            if now - node.beat_at < fresh and not self._counted_on(node):
                run = self._services.fleet.clean(node.id, of=[NodeState.LOST])
                if run:
                    self._services.courier.wake(run)

    def _counted_on(self, node: Node) -> bool:
        """Whether a lease still has this node, and is being moved off it."""
        lease = self._services.leases.get(node.lease) if node.lease else None
        return lease is not None and lease.state.open and node.id in lease.nodes
