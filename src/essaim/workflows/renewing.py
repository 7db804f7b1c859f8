"""Let the machines know when a lease ends now: they end accounts by themselves."""

from __future__ import annotations

from functools import partial

from essaim.engine.workflow import Backoff, Context, Step, Workflow
from essaim.model.fleet import Lease, LeaseState, Node
from essaim.model.runs import Again
from essaim.workflows.lending import at_once, its_nodes, lending, make_account, the_lease
from essaim.workflows.releasing import others_first


def wait(context: Context) -> Again | None:
    """Let the accounts that are being made or moved be finished first."""
    return others_first(context)


def renew(context: Context) -> None:
    """Make every account last as long as the lease, and take back what was said of its end."""
    lease = the_lease(context)
    if lease.state in (LeaseState.GRANTED, LeaseState.ACTIVE):
        at_once(partial(_renew, context, lease), its_nodes(context, lease))
    # One that is being moved gets a new account, and one that is being ended needs none.


def _renew(context: Context, lease: Lease, node: Node) -> None:
    its = lending(context)
    make_account(context, lease, node)
    its.helper.message(its.target(node), lease.account, "")


RENEW = Workflow(
    "renew",
    (
        Step(name="wait", do=wait),
        # No undo: a lease is never made shorter again because a machine did not hear of it.
        Step(name="renew", do=renew, retry=Backoff(attempts=6, first=0.5, longest=3.0)),
    ),
)
