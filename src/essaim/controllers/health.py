"""Notices lost nodes, moves their leases, and takes back nodes that return."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from essaim.model.errors import EssaimError
from essaim.model.fleet import Node, NodeState
from essaim.plan.health import Lost, Suspect, Verdict, blind, verdict
from essaim.usecases import leases as leasing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim.usecases.services import Services

#: The most seconds a node has to answer `true` over SSH: a slow check must not delay the next.
ANSWER_WITHIN = 5.0
#: Looks at the journal of beats and checks within one interval, at most.
LOOKS = 10
#: Answers that are kept in one transaction.
BATCH = 100
SERVING = (NodeState.READY, NodeState.HELD)
#: What is marked while nothing is moved.
BLIND = "fleet.blind"


class Checks:
    """Every interval, one of all processes asks each serving node over SSH."""

    name = "checks"

    def __init__(self, services: Services) -> None:
        self._services = services

    def reconcile(self) -> float:
        """Ask all, and keep what they answered."""
        services = self._services
        interval = services.fleet.policy.interval
        # One who asks, whoever it is: a failure that two had seen would count twice.  Where there
        # is no gateway, nodes behind one cannot be asked: that says nothing about them.
        here = [False, True] if services.lending.tunnels() else [False]
        tunnels = [each for each in here if services.turns.take(f"checks.{each:d}", interval)]
        nodes = [node for node in self._wanted() if node.tunnel in tunnels] if tunnels else []
        targets = [services.lending.target(node) for node in nodes]
        within = min(ANSWER_WITHIN, interval)
        answers = services.remote.fan_out(targets, ["true"], within=within, width=64)
        # Many in one transaction: one for each would cost a large fleet as much as its beats.
        while some := list(itertools.islice(answers, BATCH)):
            found = {
                target.name.machine: not isinstance(result, EssaimError) and result.exit_code == 0
                for target, result in some
            }
            services.fleet.checked_all(found)
        return interval / LOOKS

    def _wanted(self) -> list[Node]:
        """Those that serve, and lost ones that are heard of again: they too must answer."""
        fleet = self._services.fleet
        since = fleet.now() - fleet.policy.fresh * 1000
        lost = [node for node in fleet.list(states=[NodeState.LOST]) if node.beat_at > since]
        return [*fleet.list(states=SERVING), *lost]


class Health:
    """Judges every serving node, and acts on the judgement.  Any number may.

    Silence before `since` counts for nothing: then it was perhaps us who did not listen.
    """

    name = "health"

    def __init__(self, services: Services, *, since: int = 0) -> None:
        self._services = services
        self._since = since

    def reconcile(self) -> float:
        """Judge, move, take back."""
        services = self._services
        policy = services.fleet.policy
        serving = services.fleet.list(states=SERVING)
        now = services.fleet.now()
        verdicts = [verdict(self._heard(node), now, policy) for node in serving]
        judged = list(zip(serving, verdicts, strict=True))
        # A drained node is one that a person has looked at: whether it is lost is no riddle.
        riddles = [(node, each) for node, each in judged if not node.drained]
        held_back = blind([node for node, _ in riddles], [each for _, each in riddles], policy)
        if held_back:
            self._hold_back(sum(isinstance(each, Lost) for _, each in riddles), len(riddles))
        else:
            self._go_on()
        self._give_up([(node, each) for node, each in judged if node.drained or not held_back])
        self._move(only_drained=held_back)
        self._welcome(now)
        # Somebody is lost at the moment one more beat is missing, not when an interval is over.
        soon = [each.again_in for each in verdicts if isinstance(each, Suspect)]
        return max(min([policy.interval, *soon]), policy.interval / LOOKS)

    def _heard(self, node: Node) -> Node:
        return node if node.beat_at >= self._since else replace(node, beat_at=self._since)

    def _give_up(self, judged: Sequence[tuple[Node, Verdict]]) -> None:
        services = self._services
        for node, each in judged:
            if isinstance(each, Lost) and services.fleet.move(
                node.id, NodeState.LOST, of=SERVING, reason=each.reason
            ):
                # Whoever waits for an answer of it would wait until the connection is known dead.
                services.remote.drop(services.lending.target(node).name)

    def _move(self, *, only_drained: bool) -> None:
        """Begin to move leases off lost nodes."""
        services = self._services
        for lease, node_id in services.leases.stranded():
            node = services.fleet.get(node_id)
            if node is not None and (node.drained or not only_drained):
                leasing.migrate(services, lease.id, node_id, "its machine was lost")

    def _hold_back(self, lost: int, of: int) -> None:
        """Tell a person, once, however many see it."""
        text = (
            f"{lost} of {of} nodes fail at once: perhaps we are the ones cut off; nothing is "
            "moved until they answer again, or a person drains those that are really gone"
        )
        self._services.events.tell(BLIND, text, urgent=True, once=self._services.turns.mark(BLIND))

    def _go_on(self) -> None:
        turns = self._services.turns
        if began := turns.marked(BLIND):
            text = "enough nodes answer again; leases are moved as usual"
            self._services.events.tell("fleet.sighted", text, once=f"sighted {began}")
            turns.unmark(BLIND, began)

    def _welcome(self, now: int) -> None:
        """Have a lost node that is heard of again, and answers, cleaned before it serves."""
        fresh = self._services.fleet.policy.fresh * 1000
        for node in self._services.fleet.list(states=[NodeState.LOST]):
            back = now - node.beat_at < fresh and not node.failures
            if back and not self._counted_on(node):
                run = self._services.fleet.clean(node.id, of=[NodeState.LOST])
                if run:
                    self._services.courier.wake(run)

    def _counted_on(self, node: Node) -> bool:
        """Whether a lease still has this node, and is being moved off it."""
        lease = self._services.leases.get(node.lease) if node.lease else None
        return lease is not None and lease.state.open and node.id in lease.nodes
