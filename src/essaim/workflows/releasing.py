"""End a lease: take its accounts away, prove that nothing is left, give the nodes back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from essaim.engine.workflow import Backoff, Context, OnFailure, Step, Workflow
from essaim.model.errors import EssaimError, RejectedError, TransientError
from essaim.model.fleet import Lease, LeaseState, Node, NodeState
from essaim.model.runs import Again, RunState
from essaim.workflows.lending import at_once, its_nodes, lending, the_lease

#: Tries after which a node that does not answer counts as lost: it is cleaned when it returns.
PATIENCE = 4
#: Seconds a node that is lost already has to answer.
LOST_WITHIN = 1.5
#: Seconds for the removal of what is on it, when it does answer.
GOODBYE_WITHIN = 20.0


def wait(context: Context) -> Again | None:
    """Let whatever else works on the lease come to its end first."""
    return others_first(context)


def others_first(context: Context) -> Again | None:
    """Wait while another run works on the same lease; one that needs a person is not waited for."""
    mine = (context.run.created_at, context.run.id)
    others = lending(context).journal.list(subject=context.run.subject)
    # Only for those that came before: two that wait for each other would wait for ever.
    before = [each for each in others if (each.created_at, each.id) < mine]
    if any(not each.state.over and each.state is not RunState.STUCK for each in before):
        return Again(0.1, note="waits for what was under way")
    return None


def remove(context: Context) -> dict[str, Any]:
    """Remove the account from every node and look for anything that is left."""
    lease = the_lease(context)
    fence(context, lease)
    nodes = its_nodes(context, lease)
    context.note(f"cleaning {', '.join(node.name for node in nodes[:4])}")
    proofs = at_once(partial(_prove, context, lease), nodes)
    return {node.id: proof for node, proof in zip(nodes, proofs, strict=True)}


def _prove(context: Context, lease: Lease, node: Node) -> dict[str, Any]:
    its, target = lending(context), lending(context).target(node)
    try:
        if node.state is NodeState.LOST:
            its.remote.reach(target, within=LOST_WITHIN)
        its.accounts.remove(target, lease.account, at=node.read_at)
        proof = its.accounts.verify(target, lease.account)
        if _of_others(proof.found, lease):
            # Nobody else may be here: a database that was restored does not know whose it is.
            proof = its.helper.clean(target, at=node.read_at)
    except TransientError as error:
        if context.attempt < PATIENCE and node.state is not NodeState.LOST:
            raise
        return {"lost": error.what}
    except RejectedError as error:
        return {"found": [error.what]}
    return {"clean": True} if proof.clean else {"found": list(proof.found)}


def _of_others(found: Sequence[str], lease: Lease) -> bool:
    """Whether there are accounts, and not this lease's: one that will not go is for a person."""
    accounts = {each for each in found if each.startswith("account ")}
    return bool(accounts) and f"account {lease.account}" not in accounts


def fence(context: Context, lease: Lease) -> None:
    """End the account on nodes the lease was moved off, if one of them answers by now."""
    its = lending(context)
    moves = its.journal.list(subject=lease.id, workflow="migrate")
    left = {run.input["node"] for run in moves} - set(lease.nodes)
    lost = [node for node in its.fleet.list(ids=left) if node.state is NodeState.LOST]
    at_once(partial(_fence, context, lease), lost)


def _fence(context: Context, lease: Lease, node: Node) -> None:
    its, target = lending(context), lending(context).target(node)
    try:
        its.remote.reach(target, within=LOST_WITHIN)
        its.helper.remove(target, lease.account, at=node.read_at, within=GOODBYE_WITHIN)
    except EssaimError as error:
        # It is cleaned before it serves again, and ends the account itself when its time is over.
        context.note(f"{node.name}: {error.what}")


def give_back(context: Context) -> None:
    """Nodes proven clean serve again; the others do not until they are."""
    its, lease = lending(context), the_lease(context)
    for key, proof in context.outputs["remove"].items():
        node = its.fleet.get(key)
        if node is None or node.lease != lease.id:
            continue  # somebody else's by now
        if proof.get("clean"):
            its.fleet.move(key, NodeState.READY, of=[NodeState.HELD])
        elif "lost" in proof:
            its.fleet.move(key, NodeState.LOST, of=[NodeState.HELD], reason=proof["lost"])
        else:
            left = ", ".join(proof["found"][:5])
            its.fleet.move(key, NodeState.QUARANTINED, of=[NodeState.HELD], reason=left)
    its.leases.move(lease.id, LeaseState.ENDED, of=[LeaseState.ENDING], reason=lease.reason)
    its.homes.forget(lease.id)


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
