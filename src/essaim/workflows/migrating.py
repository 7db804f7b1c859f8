"""Move a lease off a node that is lost, so that its owner notices as little as possible."""

from __future__ import annotations

from typing import Any

from essaim.engine.workflow import Backoff, Context, OnFailure, Step, Workflow
from essaim.model.errors import EssaimError, RejectedError
from essaim.model.fleet import Lease, LeaseState, Node, NodeState
from essaim.model.runs import Again
from essaim.model.words import both
from essaim.workflows.lending import lending, make_account, restore_home, the_lease
from essaim.workflows.releasing import others_first

#: Seconds between two looks for a free node.
LOOK_AGAIN = 1.0
#: Seconds a node that is thought lost has to answer: its lease waits for that.
FENCE_WITHIN = 1.0
#: Seconds for the last copy of a home, and for its removal, on a node that does answer.
GOODBYE_WITHIN = 20.0


def wait(context: Context) -> Again | None:
    """Let the accounts that are being made be finished first."""
    return others_first(context)


def stay(context: Context) -> None:
    """Leave the lease where it was: as its node is lost, somebody begins to move it anew."""
    its, lease = lending(context), the_lease(context)
    its.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.MIGRATING], reason=lease.reason)


def fence(context: Context) -> dict[str, Any]:
    """End the account on the old node if it can be reached; if not, it ends there by itself."""
    its, lease = lending(context), the_lease(context)
    old = its.fleet.get(context.run.input["node"])
    if old is None:
        return {"fenced": False}
    target = its.target(old)
    try:
        its.remote.reach(target, within=FENCE_WITHIN)
        _last_copy(context, lease, old)
        # By the helper, which can be given a limit; what it misses is found when it is cleaned.
        its.helper.remove(target, lease.account, at=old.read_at, within=GOODBYE_WITHIN)
    except EssaimError as error:
        return {"fenced": False, "why": error.what}
    return {"fenced": True}


def _last_copy(context: Context, lease: Lease, old: Node) -> None:
    """Copy once more what is about to be removed: only its agent may be gone.

    Never again after that: a home that is half removed would be taken for what its owner wants.
    """
    its = lending(context)
    if not lease.wish.home or old.id not in lease.nodes:
        return
    place = lease.nodes.index(old.id)
    if not its.homes.sealed(lease.id, place, old.id):
        try:
            its.copy_home(lease, old, within=GOODBYE_WITHIN)
        except EssaimError as error:
            context.note(f"{old.name}: no last copy of the home: {error.what}")
        its.homes.seal(lease.id, place, old.id)


def place(context: Context) -> dict[str, Any] | Again:
    """Hold another node, as soon as one is free."""
    its, lease = lending(context), _moving(context)
    found = its.leases.spare(lease.id)
    if found is None:
        return Again(LOOK_AGAIN, note="waits for a free machine")
    return {"node": found.id}


def unplace(context: Context) -> None:
    """Have the new node cleaned: it may have seen the account already."""
    its, lease = lending(context), the_lease(context)
    # Not what `place` returned: it may have ended without having been able to say so.
    for node in its.fleet.list(states=[NodeState.HELD]):
        if node.lease == lease.id and node.id not in lease.nodes:
            its.fleet.clean(node.id, of=[NodeState.HELD])


def account(context: Context) -> None:
    """Make the account on the new node."""
    new = _new(context)
    context.note(f"account on {new.name}")
    make_account(context, _moving(context), new)


def restore(context: Context) -> dict[str, Any]:
    """Bring the last copy of the home, when there is one."""
    lease, new = _moving(context), _new(context)
    return restore_home(context, lease, new, lease.nodes.index(context.run.input["node"]))


def switch(context: Context) -> None:
    """Tell the owner, and let the gateway lead to the new node."""
    its, lease, new = lending(context), the_lease(context), _new(context)
    if lease.state is LeaseState.MIGRATING:
        _tell(context, lease, new)
    its.leases.switch(lease.id, context.run.input["node"], new.id)
    its.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.MIGRATING])


def _tell(context: Context, lease: Lease, new: Node) -> None:
    its, restored = lending(context), context.outputs["restore"]
    text = both("machine.moved", machine=new.name)
    if "why" in restored:
        text += "\n" + both("machine.unrestored")
        why = f"the home of {lease.id} could not be restored on {new.name}: {restored['why']}"
        its.events.tell("lease.moved", why, lease=lease.id, node=new.id, urgent=True, once=why)
    try:
        its.helper.message(its.target(new), lease.account, text)
    except EssaimError as error:
        context.note(f"{new.name}: the message could not be left: {error.what}")


def retire(context: Context) -> None:
    """Forget the old node's lease: when it returns it is cleaned before it serves."""
    its, key = lending(context), context.run.input["node"]
    if context.outputs["fence"]["fenced"]:
        its.fleet.clean(key, of=[NodeState.HELD, NodeState.LOST])
    else:
        its.fleet.move(key, NodeState.LOST, of=[NodeState.HELD], reason="lost with a lease")


def _moving(context: Context) -> Lease:
    lease = the_lease(context)
    if lease.state is not LeaseState.MIGRATING:
        raise RejectedError("the lease was ended while it was being moved")
    return lease


def _new(context: Context) -> Node:
    found = lending(context).fleet.get(context.outputs["place"]["node"])
    if found is None or found.lease != context.run.input["lease"]:
        raise RejectedError("the new node was taken away from the lease")
    return found


_PATIENT = Backoff(attempts=4, first=0.2, longest=2.0)

MIGRATE = Workflow(
    "migrate",
    (
        Step(name="wait", do=wait, undo=stay),
        Step(name="fence", do=fence),  # no undo: the old node is given up either way
        Step(name="place", do=place, undo=unplace),
        Step(name="account", do=account, retry=_PATIENT),  # undone with its node, by `place`
        Step(name="restore", do=restore, retry=_PATIENT),  # likewise
        # The owner may be at work on the new node: from here on it is only ever finished.
        Step(name="switch", do=switch, retry=_PATIENT, on_failure=OnFailure.STOP),
        Step(name="retire", do=retire, on_failure=OnFailure.STOP, stored=True),
    ),
)
