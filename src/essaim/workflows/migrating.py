"""Move a lease off a node that is lost, so that its owner notices as little as possible."""

from __future__ import annotations

from typing import Any

from essaim.engine.workflow import Backoff, Context, Step, Workflow
from essaim.model.errors import EssaimError, RejectedError
from essaim.model.fleet import LeaseState, Node, NodeState
from essaim.model.runs import Again
from essaim.workflows.lending import lending, make_account, the_lease

#: Seconds between two looks for a free node.
LOOK_AGAIN = 2.0
#: Seconds a node that is thought lost has to answer: its lease waits for that.
FENCE_WITHIN = 1.5


def fence(context: Context) -> dict[str, Any]:
    """End the account on the old node if it can be reached; if not, it ends there by itself."""
    its, lease = lending(context), the_lease(context)
    old = its.fleet.get(context.run.input["node"])
    if old is None:
        return {"fenced": False}
    target = its.target(old)
    try:
        its.remote.reach(target, within=FENCE_WITHIN)
        its.accounts.remove(target, lease.account)
    except EssaimError as error:
        return {"fenced": False, "why": error.what}
    return {"fenced": True}


def place(context: Context) -> dict[str, Any] | Again:
    """Hold another node, as soon as one is free."""
    its, lease = lending(context), the_lease(context)
    if lease.state is not LeaseState.MIGRATING:
        raise RejectedError("the lease was ended while it was being moved")
    found = its.leases.spare(lease.id)
    if found is None:
        return Again(LOOK_AGAIN, note="waits for a free machine")
    return {"node": found.id}


def unplace(context: Context) -> None:
    """Have the new node cleaned: it may have seen the account already."""
    key = context.outputs.get("place", {}).get("node")
    if key:
        lending(context).fleet.clean(key, of=[NodeState.HELD])


def account(context: Context) -> None:
    """Make the account on the new node."""
    make_account(context, _new(context))


def restore(context: Context) -> dict[str, Any]:
    """Bring the last copy of the home, when there is one."""
    its, lease = lending(context), the_lease(context)
    copy = its.home(lease, context.run.input["node"])
    if not copy.exists():
        return {"restored": 0}
    context.note("restoring the home")
    data = copy.read_bytes()
    its.helper.restore(its.target(_new(context)), lease.account, data)
    return {"restored": len(data)}


def switch(context: Context) -> None:
    """Let the gateway lead to the new node."""
    its, lease, new = lending(context), the_lease(context), _new(context)
    its.leases.switch(lease.id, context.run.input["node"], new.id)
    text = f"Your machine was lost; since then you are on {new.name}, at the same address."
    its.helper.message(its.target(new), lease.account, text)
    its.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.MIGRATING])


def retire(context: Context) -> None:
    """Forget the old node's lease: when it returns it is cleaned before it serves."""
    its, key = lending(context), context.run.input["node"]
    if context.outputs["fence"]["fenced"]:
        its.fleet.clean(key, of=[NodeState.HELD, NodeState.LOST])
    else:
        its.fleet.move(key, NodeState.LOST, of=[NodeState.HELD], reason="lost with a lease")


def _new(context: Context) -> Node:
    found = lending(context).fleet.get(context.outputs["place"]["node"])
    if found is None:
        raise RejectedError("the new node was removed from the fleet")
    return found


_PATIENT = Backoff(attempts=4, first=0.2, longest=2.0)

MIGRATE = Workflow(
    "migrate",
    (
        Step(name="fence", do=fence),  # no undo: the old node is given up either way
        Step(name="place", do=place, undo=unplace),
        Step(name="account", do=account, retry=_PATIENT),  # undone with its node, by `place`
        Step(name="restore", do=restore, retry=_PATIENT),  # likewise
        Step(name="switch", do=switch, retry=_PATIENT),
        Step(name="retire", do=retire),
    ),
)
