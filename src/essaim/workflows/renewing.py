"""Let the machines know when a lease ends now: they end accounts by themselves.

With the name of a node, also put it right: the lease's account is there with its home, no other is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from essaim.engine.workflow import Backoff, Context, Step, Workflow
from essaim.model.fleet import Lease, LeaseState, Node
from essaim.model.runs import Again
from essaim.workflows.lending import (
    at_once,
    its_nodes,
    lending,
    make_account,
    restore_home,
    the_lease,
)
from essaim.workflows.releasing import others_first


def wait(context: Context) -> Again | dict[str, Any]:
    """Let the accounts that are being made or moved be finished first."""
    return others_first(context) or _alone(context)


def _alone(context: Context) -> dict[str, Any]:
    """Remove from the node that is named all accounts but the lease's; say if that is missing."""
    its, lease = lending(context), the_lease(context)
    node = next((each for each in _kept(context, lease) if _is_named(context, each)), None)
    if node is None:
        return {}
    target = its.target(node)
    there = {str(each["account"]) for each in its.helper.list(target)}
    others = sorted(there - {lease.account})
    for other in others:
        context.note(f"{node.name}: removing {other}, which no lease explains")
        its.helper.remove(target, other, at=node.read_at)
    return {"removed": others, "missing": lease.account not in there}


def renew(context: Context) -> None:
    """Make every account last as long as the lease, and take back what was said of its end."""
    lease = the_lease(context)
    at_once(partial(_renew, context, lease), _kept(context, lease))


def _renew(context: Context, lease: Lease, node: Node) -> None:
    its = lending(context)
    make_account(context, lease, node)
    its.helper.message(its.target(node), lease.account, "")
    if _is_named(context, node) and context.outputs["wait"].get("missing"):
        restore_home(context, lease, node, lease.nodes.index(node.id))


def _kept(context: Context, lease: Lease) -> list[Node]:
    """The nodes of a lease that has accounts: one that is being moved or ended needs none."""
    kept = lease.state in (LeaseState.GRANTED, LeaseState.ACTIVE)
    return its_nodes(context, lease) if kept else []


def _is_named(context: Context, node: Node) -> bool:
    return bool(context.run.input.get("node") == node.id)


_PATIENT = Backoff(attempts=6, first=0.5, longest=3.0)

RENEW = Workflow(
    "renew",
    (
        # No undo: a lease is never made shorter again because a machine did not hear of it.
        Step(name="wait", do=wait, retry=_PATIENT),
        Step(name="renew", do=renew, retry=_PATIENT),
    ),
)
