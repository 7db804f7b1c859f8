"""Start, stop, keep and bring back one student's machine."""

from __future__ import annotations

from essaim.engine.workflow import Context, OnFailure, Step, Workflow
from essaim.model.errors import RejectedError
from essaim.model.machines import Snapshots
from essaim.workflows import schooling
from essaim.workflows.enrolling import HYPERVISOR
from essaim.workflows.tools import machine, tools, work


def keeps(context: Context) -> Snapshots:
    """The driver, if it can keep disks."""
    site = work(context).stack.site
    driver = tools(context).driver(site)
    if not isinstance(driver, Snapshots):
        raise RejectedError(f"{site.driver} machines keep no snapshots")
    return driver


def snapshot(context: Context) -> None:
    """Keep the disk as it is under the label that was asked for."""
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


_START = Step(
    name="start",
    do=schooling.start,
    slot=schooling.start_slot,
    retry=HYPERVISOR,
    on_failure=OnFailure.STOP,
)

# No undo: whoever asked for it may ask for the opposite.
WAKE = Workflow("wake", (_START,))
HALT = Workflow(
    "halt", (Step(name="stop", do=schooling.stop, retry=HYPERVISOR, on_failure=OnFailure.STOP),)
)
KEEP = Workflow(
    "keep", (Step(name="snapshot", do=snapshot, retry=HYPERVISOR, on_failure=OnFailure.STOP),)
)
REVERT = Workflow(
    "revert",
    (Step(name="restore", do=restore, retry=HYPERVISOR, on_failure=OnFailure.STOP), _START),
)
UNKEEP = Workflow(
    "unkeep", (Step(name="drop", do=drop, retry=HYPERVISOR, on_failure=OnFailure.STOP),)
)
