"""Give a granted lease its accounts."""

from __future__ import annotations

from functools import partial

from essaim.engine.workflow import Backoff, Context, OnFailure, Step, Workflow
from essaim.model.errors import EssaimError, RejectedError, TransientError
from essaim.model.fleet import Lease, LeaseState, Node, NodeState
from essaim.workflows.lending import at_once, its_nodes, lending, make_account, the_lease


def accounts(context: Context) -> None:
    """Make the account on every node of the lease, at the same time."""
    lease = the_lease(context)
    if lease.state not in (LeaseState.GRANTED, LeaseState.MIGRATING):
        raise RejectedError("the lease was ended before it began")
    nodes = its_nodes(context, lease)
    if lease.state is LeaseState.MIGRATING:
        # A node was lost already: the run that moves the lease sees to its successor.
        nodes = [node for node in nodes if node.state is not NodeState.LOST]
    elif len(nodes) < len(lease.nodes):
        raise TransientError("a machine of the lease was lost")
    at_once(partial(make_account, context, lease), nodes)


def give_back(context: Context) -> None:
    """Let the lease fail, and have its nodes cleaned; one that is being ended ends that way.

    The accounts are taken away as far as the nodes answer; the rest is found when they are cleaned.
    """
    its, lease = lending(context), the_lease(context)
    nodes = its_nodes(context, lease)
    at_once(partial(_take_away, context, lease), nodes)
    reason = context.run.error or "its accounts could not be made"
    its.leases.move(lease.id, LeaseState.FAILED, of=[LeaseState.GRANTED], reason=reason)
    if the_lease(context).state is LeaseState.FAILED:
        for node in nodes:
            its.fleet.clean(node.id, of=[NodeState.HELD])


def _take_away(context: Context, lease: Lease, node: Node) -> None:
    its = lending(context)
    try:
        its.accounts.remove(its.target(node), lease.account, at=node.read_at)
    except EssaimError as error:
        context.note(f"{node.name}: {error.what}")


def activate(context: Context) -> None:
    """Open the gateway to its owner, unless the lease is already being moved or ended."""
    key = context.run.input["lease"]
    lending(context).leases.move(key, LeaseState.ACTIVE, of=[LeaseState.GRANTED])


RENT = Workflow(
    "rent",
    (
        Step(
            name="accounts",
            do=accounts,
            undo=give_back,
            retry=Backoff(attempts=4, first=0.2, longest=2.0),
        ),
        # The lease's owner may be at work already: there is no way back from here.
        Step(name="activate", do=activate, on_failure=OnFailure.STOP, stored=True),
    ),
)
