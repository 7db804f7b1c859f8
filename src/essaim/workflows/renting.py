"""Give a granted lease its accounts."""

from __future__ import annotations

from essaim.engine.workflow import Backoff, Context, Step, Workflow
from essaim.model.errors import EssaimError, RejectedError
from essaim.model.fleet import LeaseState, NodeState
from essaim.workflows.lending import its_nodes, lending, make_account, the_lease


def hold(context: Context) -> None:
    """The nodes were given to the lease when it was granted; this step exists for its undo."""
    context.note("granted")


def give_back(context: Context) -> None:
    """Let the lease fail, and have its nodes cleaned."""
    its, lease = lending(context), the_lease(context)
    reason = context.run.error or "its accounts could not be made"
    its.leases.move(lease.id, LeaseState.FAILED, of=[LeaseState.GRANTED], reason=reason)
    for key in lease.nodes:
        its.fleet.clean(key, of=[NodeState.HELD])


def accounts(context: Context) -> None:
    """Make the account on every node of the lease."""
    if the_lease(context).state is not LeaseState.GRANTED:
        raise RejectedError("the lease was ended before it began")
    for node in its_nodes(context):
        make_account(context, node)


def no_accounts(context: Context) -> None:
    """Take the accounts away again, as far as the nodes answer; the rest is cleaned later."""
    its, lease = lending(context), the_lease(context)
    for node in its_nodes(context):
        try:
            its.accounts.remove(its.target(node), lease.account)
        except EssaimError as error:
            context.note(f"{node.name}: {error.what}")


def activate(context: Context) -> None:
    """Open the gateway to its owner."""
    its, lease = lending(context), the_lease(context)
    its.leases.move(lease.id, LeaseState.ACTIVE, of=[LeaseState.GRANTED])


RENT = Workflow(
    "rent",
    (
        Step(name="hold", do=hold, undo=give_back),
        Step(
            name="accounts",
            do=accounts,
            undo=no_accounts,
            retry=Backoff(attempts=4, first=0.2, longest=2.0),
        ),
        Step(name="activate", do=activate),  # no undo: nothing can fail after it
    ),
)
