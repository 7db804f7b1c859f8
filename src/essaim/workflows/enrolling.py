"""Give a student a machine: address, clone, DHCP, DNS, desktop, power."""

from __future__ import annotations

from dataclasses import replace

from essaim.config.serial import stack_from_json, stack_to_json
from essaim.engine.workflow import Backoff, Context, OnFailure, Step, Workflow
from essaim.model.runs import Again
from essaim.plan.rosters import Access, Standing
from essaim.workflows import schooling, student_account
from essaim.workflows.schooling import school, why
from essaim.workflows.tools import machine, tools, work

#: Servers that do not answer are asked for about two minutes, hypervisors for ten.
SERVERS = Backoff(attempts=8, first=0.5, longest=30.0)
HYPERVISOR = Backoff(attempts=14, first=1.0, longest=60.0)


def give_up(context: Context) -> None:
    """Keep why it failed, and let others have the address."""
    its, at, name = school(context), work(context), str(machine(context).name)
    its.rosters.stand(name, Standing.FAILED, why(context))
    its.rosters.release(at.stack.site.name, name)


def keep_why(context: Context) -> None:
    """Keep why it failed; machine and address stay, for the student has worked with them."""
    school(context).rosters.stand(str(machine(context).name), Standing.FAILED, why(context))


def settle(context: Context) -> None:
    """Keep that the machine is there, and on."""
    school(context).rosters.stand(str(machine(context).name), Standing.READY, on=True)
    if context.run.parent is None:  # else whoever enrols many sees to their stack
        enlist(context)


def enlist(context: Context) -> None:
    """Put the machine into its roster's stack, where commands find its address."""
    its, wanted = tools(context).stacks, schooling.placed(context)
    body = its.get_stack(wanted.name.stack)
    if body is None:
        return
    stack = stack_from_json(body["stack"])
    others = tuple(each for each in stack.machines if each.name != wanted.name)
    found = stack_to_json(replace(stack, machines=(*others, wanted)))
    its.put_stack(stack.name, {**body, "stack": found})


def settle_mended(context: Context) -> None:
    """Keep that the machine is there."""
    school(context).rosters.stand(str(machine(context).name), Standing.READY)


def start_mended(context: Context) -> None:
    """Power it on, unless somebody has stopped it."""
    student = school(context).rosters.of_machine(str(machine(context).name))
    if student is None or not student.halted:
        schooling.start(context)


def account_mended(context: Context) -> Again | None:
    """Renew the student's account, unless somebody has stopped the machine."""
    student = school(context).rosters.of_machine(str(machine(context).name))
    return None if student is None or student.halted else student_account.renew(context)


def clear(context: Context) -> None:
    """Make room for a new disk; address, name and desktop stay."""
    context.note("removing the old disk")
    schooling.dismiss(context)  # the new one may have another card
    schooling.destroy(context)
    school(context).rosters.access.put(str(machine(context).name), Access())


_CREATE = Step(name="create", do=schooling.create, undo=schooling.destroy, retry=HYPERVISOR)
_ADMIT = Step(name="admit", do=schooling.admit, undo=schooling.dismiss, retry=SERVERS)
_NAME = Step(name="name", do=schooling.name, undo=schooling.unname, retry=SERVERS)
_PUBLISH = Step(name="publish", do=schooling.publish, undo=schooling.withdraw, retry=SERVERS)
_START = Step(
    name="start",
    do=schooling.start,
    undo=schooling.stop,
    slot=schooling.start_slot,
    retry=HYPERVISOR,
)
# No undo: it goes with the disk.  It fails for nobody, for a machine without it is of use.
_ACCOUNT = Step(name="account", do=student_account.make, retry=HYPERVISOR)
# No undo: it is the last, and is written with the end of the run.
_SETTLE = Step(name="settle", do=settle, stored=True)

_MAKING = (_CREATE, _ADMIT, _NAME, _PUBLISH, _START, _ACCOUNT)

ENROL = Workflow(
    "enrol",
    (Step(name="address", do=schooling.check_address, undo=give_up), *_MAKING, _SETTLE),
)

# A machine that a student has worked on: nothing that is there is taken away when a part fails.
MEND = Workflow(
    "mend",
    (
        Step(name="address", do=schooling.check_address, undo=keep_why),
        *(replace(step, undo=None) for step in (_CREATE, _ADMIT, _NAME, _PUBLISH)),
        replace(_START, do=start_mended, undo=None),
        replace(_ACCOUNT, do=account_mended),
        replace(_SETTLE, do=settle_mended),
    ),
)

# The old disk is gone after the first step, so a failure stops, and resuming goes on.
RESET = Workflow(
    "reset",
    (
        Step(name="clear", do=clear, retry=HYPERVISOR, on_failure=OnFailure.STOP),
        *(replace(step, undo=None, on_failure=OnFailure.STOP) for step in (*_MAKING, _SETTLE)),
    ),
)
