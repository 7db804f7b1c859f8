"""Prove a node clean before it serves: one that joined, came back, or is readmitted."""

from __future__ import annotations

from typing import Any

from essaim.engine.workflow import Backoff, Context, Step, Workflow
from essaim.model.errors import RejectedError
from essaim.model.fleet import Node, NodeState
from essaim.workflows.lending import lending


def clean(context: Context) -> dict[str, Any]:
    """Remove every lease's account there is, and look for anything that is left."""
    its, node = lending(context), _node(context)
    context.note(f"cleaning {node.name}")
    proof = its.helper.clean(its.target(node))
    its.fleet.checked(node.id, well=True)
    return {"clean": proof.clean, "found": list(proof.found)}


def give_up(context: Context) -> None:
    """A node that cannot be reached is lost; it is cleaned when it is heard of again."""
    reason = context.run.error or "it could not be reached to be cleaned"
    its = lending(context)
    its.fleet.move(_node(context).id, NodeState.LOST, of=[NodeState.CLEANING], reason=reason)


def admit(context: Context) -> None:
    """Let it serve, or set it aside for a person to look at."""
    its, node = lending(context), _node(context)
    proof = context.outputs["clean"]
    if proof["clean"]:
        its.fleet.move(node.id, NodeState.READY, of=[NodeState.CLEANING])
        return
    left = ", ".join(proof["found"][:5])
    its.fleet.move(node.id, NodeState.QUARANTINED, of=[NodeState.CLEANING], reason=left)


def _node(context: Context) -> Node:
    found = lending(context).fleet.get(context.run.input["node"])
    if found is None:
        raise RejectedError("the node was removed from the fleet")
    return found


CLEAN = Workflow(
    "clean",
    (
        Step(name="clean", do=clean, undo=give_up, retry=Backoff(attempts=5, first=0.5)),
        Step(name="admit", do=admit),  # no undo: nothing can fail after it
    ),
)
