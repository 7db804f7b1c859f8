"""End a lease: take its accounts away, prove that nothing is left, give the nodes back."""

from __future__ import annotations

import shutil
from typing import Any

from essaim.engine.workflow import Backoff, Context, OnFailure, Step, Workflow
from essaim.model.errors import RejectedError, TransientError
from essaim.model.fleet import LeaseState, NodeState
from essaim.model.runs import Again, RunState
from essaim.workflows.lending import its_nodes, lending, the_lease

#: Tries after which a node that does not answer counts as lost: it is cleaned when it returns.
PATIENCE = 4


def wait(context: Context) -> Again | None:
    """Let whatever else works on the lease come to its end first."""
    others = lending(context).journal.list(subject=context.run.subject)
    busy = [r for r in others if r.id != context.run.id and not r.state.over]
    if any(r.state is not RunState.STUCK for r in busy):
        return Again(0.2, note="waits for what was under way")
    return None


def remove(context: Context) -> dict[str, Any]:
    """Remove the account from every node and look for anything that is left."""
    its, lease = lending(context), the_lease(context)
    proofs: dict[str, Any] = {}
    for node in its_nodes(context):
        context.note(f"cleaning {node.name}")
        target = its.target(node)
        try:
            its.accounts.remove(target, lease.account)
            proof = its.accounts.verify(target, lease.account)
        except TransientError as error:
            if context.attempt < PATIENCE:
                raise
            proofs[node.id] = {"lost": error.what}
        except RejectedError as error:
            proofs[node.id] = {"found": [error.what]}
        else:
            proofs[node.id] = {"found": list(proof.found)} if not proof.clean else {"clean": True}
    return proofs


def give_back(context: Context) -> None:
    """Nodes proven clean serve again; the others do not until they are."""
    its, lease = lending(context), the_lease(context)
    for key, proof in context.outputs["remove"].items():
        if proof.get("clean"):
            its.fleet.move(key, NodeState.READY, of=[NodeState.HELD])
        elif "lost" in proof:
            its.fleet.move(key, NodeState.LOST, of=[NodeState.HELD], reason=proof["lost"])
        else:
            left = ", ".join(proof["found"][:5])
            its.fleet.move(key, NodeState.QUARANTINED, of=[NodeState.HELD], reason=left)
    its.leases.move(lease.id, LeaseState.ENDED, of=[LeaseState.ENDING], reason=lease.reason)
    shutil.rmtree(its.homes / lease.id, ignore_errors=True)


# No undo: ending a lease is only ever finished.
RELEASE = Workflow(
    "release",
    (
        Step(name="wait", do=wait, on_failure=OnFailure.STOP),
        Step(
            name="remove",
            do=remove,
            retry=Backoff(attempts=PATIENCE + 1, first=0.5, longest=5.0),
            on_failure=OnFailure.STOP,
        ),
        Step(name="give_back", do=give_back, on_failure=OnFailure.STOP),
    ),
)
