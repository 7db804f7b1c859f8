"""Start, stop, keep and bring back one student's machine."""

from __future__ import annotations

from essaim.engine.workflow import Context, Step, Workflow
from essaim.model.errors import RejectedError
from essaim.model.machines import Snapshots
from essaim.workflows import schooling, student_account
from essaim.workflows.enrolling import HYPERVISOR
from essaim.workflows.schooling import school
from essaim.workflows.tools import machine, tools, work


def keeps(context: Context) -> Snapshots:
    """The driver, if it can keep disks."""
    site = work(context).stack.site
    driver = tools(context).driver(site)
    if not isinstance(driver, Snapshots):
        raise RejectedError(f"{site.driver} machines keep no snapshots")
    return driver


def refuse_label(context: Context) -> None:
    """Refuse a label that is taken; a snapshot of that label is ours once this step is done."""
    name, label = machine(context).name, context.run.input["label"]
    if label in {each.label for each in keeps(context).snapshots(name)}:
        raise RejectedError(
            f"{name} has a snapshot {label} already: "
            "choose another label, or remove that snapshot first",
            hint=f"essaim snapshot drop {name} {label}",
        )


def snapshot(context: Context) -> None:
    """Keep the disk as it is under the label that was asked for; once, however often tried."""
    driver, name, label = keeps(context), machine(context).name, context.run.input["label"]
    if label not in {each.label for each in driver.snapshots(name)}:
        driver.snapshot(name, label)


def restore(context: Context) -> None:
    """Go back; the machine is off then."""
    its, name = tools(context), machine(context).name
    its.remote.drop(name)
    keeps(context).restore(name, context.run.input["label"])


def drop(context: Context) -> None:
    """Forget a snapshot."""
    keeps(context).drop_snapshot(machine(context).name, context.run.input["label"])


def wake(context: Context) -> None:
    """Power it on; it is wanted on from now on."""
    school(context).rosters.halt(str(machine(context).name), on=True)
    schooling.start(context)


def halt(context: Context) -> None:
    """Power it off; it is wanted off until somebody starts it."""
    school(context).rosters.halt(str(machine(context).name), on=False)
    schooling.stop(context)


_START = Step(name="start", do=wake, slot=schooling.start_slot, retry=HYPERVISOR)
# What the student logs in with may have changed while the machine was off, or gone back with it.
_ACCOUNT = Step(name="account", do=student_account.catch_up, retry=HYPERVISOR)
_RENEW = Step(name="account", do=student_account.renew, retry=HYPERVISOR)

# No undo, and nothing a person would have to decide: whoever asked may ask again, or for the
# opposite.
WAKE = Workflow("wake", (_START, _ACCOUNT))
HALT = Workflow("halt", (Step(name="stop", do=halt, retry=HYPERVISOR),))
KEEP = Workflow(
    "keep",
    (
        Step(name="label", do=refuse_label, retry=HYPERVISOR),
        Step(name="snapshot", do=snapshot, retry=HYPERVISOR),
    ),
)
REVERT = Workflow("revert", (Step(name="restore", do=restore, retry=HYPERVISOR), _START, _RENEW))
UNKEEP = Workflow("unkeep", (Step(name="drop", do=drop, retry=HYPERVISOR),))
