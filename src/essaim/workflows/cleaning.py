"""Prove a node clean before it serves: one that joined, came back, or is readmitted."""

from __future__ import annotations

from typing import Any

from essaim.engine.workflow import Backoff, Context, OnFailure, Step, Workflow
from essaim.model.errors import RejectedError
from essaim.model.fleet import Node, NodeState
from essaim.model.runs import Again, RunState
from essaim.workflows.lending import lending


def clean(context: Context) -> dict[str, Any]:
    """Remove every lease's account there is, and look for anything that is left."""
    its, node = lending(context), _node(context)
    if node.state is not NodeState.CLEANING:
        return {"over": True}  # another run was quicker, and somebody may be at work there
    context.note(f"cleaning {node.name}")
    proof = its.helper.clean(its.target(node), at=node.read_at)
    its.fleet.checked(node.id, well=True)
    return {"clean": proof.clean, "found": list(proof.found)}


def give_up(context: Context) -> None:
    """A node that cannot be reached is lost; it is cleaned when it is heard of again."""
    reason = context.run.error or "it could not be reached to be cleaned"
    its = lending(context)
    # Not taken back for its heartbeats alone: it must answer a check first.
    its.fleet.checked(_node(context).id, well=False)
    its.fleet.move(_node(context).id, NodeState.LOST, of=[NodeState.CLEANING], reason=reason)


def admit(context: Context) -> Again | None:
    """Let it serve, or set it aside for a person to look at."""
    its, node, run = lending(context), _node(context), context.run
    proof = context.outputs["clean"]
    others = its.journal.list(subject=node.id, workflow="clean")
    others = [each for each in others if each.id != run.id and not each.state.over]
    # Who joined anew has to be proven clean anew: the last one asked for decides.
    if "over" in proof or any((e.created_at, e.id) > (run.created_at, run.id) for e in others):
        return None
    if any(each.epoch and each.state is not RunState.STUCK for each in others):
        return Again(0.1, note="an earlier cleaning must not meet the next lease")
    if proof["clean"]:
        its.fleet.move(node.id, NodeState.READY, of=[NodeState.CLEANING])
        return None
    left = ", ".join(proof["found"][:5])
    its.fleet.move(node.id, NodeState.QUARANTINED, of=[NodeState.CLEANING], reason=left)
    return None


def _node(context: Context) -> Node:
    found = lending(context).fleet.get(context.run.input["node"])
    if found is None:
        raise RejectedError("the node was removed from the fleet")
    return found


CLEAN = Workflow(
    "clean",
    (
        Step(name="clean", do=clean, undo=give_up, retry=Backoff(attempts=5, first=0.5)),
        # It may serve already: there is no way back from here.
        Step(name="admit", do=admit, on_failure=OnFailure.STOP),
    ),
)
