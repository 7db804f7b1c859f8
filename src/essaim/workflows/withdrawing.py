"""Take a student's machine away: first out of reach and off, destroyed when its grace is over."""

from __future__ import annotations

from essaim.engine.workflow import Context, OnFailure, Step, Workflow
from essaim.plan.rosters import Standing
from essaim.workflows import schooling, student_account
from essaim.workflows.enrolling import HYPERVISOR, SERVERS
from essaim.workflows.schooling import school
from essaim.workflows.tools import machine, site_slot, work


def rest(context: Context) -> None:
    """Keep since when it is retired; its address stays its own until it is destroyed."""
    school(context).rosters.stand(str(machine(context).name), Standing.RETIRED)


def forget(context: Context) -> None:
    """Let others have the address; whoever is still on the roster may have a machine again."""
    its, site, name = school(context), work(context).stack.site.name, str(machine(context).name)
    if context.run.input.get("stays"):
        its.rosters.stand(name, Standing.WITHOUT)
        its.rosters.release(site, name)
    else:
        its.rosters.forget(site, [name])


# No undo: what leaves is only ever finished.  A part that fails stops, to be resumed.
_STOP = Step(name="stop", do=schooling.stop, retry=HYPERVISOR, on_failure=OnFailure.STOP)
_AWAY = (
    Step(name="withdraw", do=schooling.withdraw, retry=SERVERS, on_failure=OnFailure.STOP),
    _STOP,
    Step(name="dismiss", do=schooling.dismiss, retry=SERVERS, on_failure=OnFailure.STOP),
    Step(name="unname", do=schooling.unname, retry=SERVERS, on_failure=OnFailure.STOP),
)

WITHDRAW = Workflow(
    "withdraw",
    (
        Step(name="lock", do=student_account.lock, on_failure=OnFailure.STOP),
        *_AWAY,
        Step(name="rest", do=rest, stored=True, on_failure=OnFailure.STOP),
    ),
)

REMOVE = Workflow(
    "remove",
    (
        *_AWAY,
        Step(
            name="destroy",
            do=schooling.destroy,
            slot=site_slot("destroy"),
            retry=HYPERVISOR,
            on_failure=OnFailure.STOP,
        ),
        Step(name="forget", do=forget, stored=True, on_failure=OnFailure.STOP),
    ),
)
