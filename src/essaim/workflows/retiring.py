"""Take a machine out of its stack: let its roles say good-bye, then remove it."""

from __future__ import annotations

from essaim.config.serial import machine_from_json
from essaim.engine.workflow import Context, OnFailure, Step, Workflow
from essaim.model.machines import Power
from essaim.model.names import MachineName
from essaim.remote import roles
from essaim.workflows.configuring import facts, recorder
from essaim.workflows.tools import site_slot, tools, work


def leave(context: Context) -> None:
    """Run what the machine's roles ask for before it goes, such as draining it."""
    its, at = tools(context), work(context)
    name = context.run.input["machine"]
    body = its.stacks.get_machine(name)
    if body is None:
        return
    leaving = machine_from_json(body)
    seen = {m.name: m.power for m in its.driver(at.stack.site).observe(at.stack.name)}
    for role in [at.stack.roles[r] for r in leaving.roles if r in at.stack.roles]:
        for step in role.leave:
            on = at.carrier(step.on)
            # Nobody left to tell, or nobody who listens: then there is nothing to say.
            if on is None or seen.get(on.name) is not Power.ON:
                continue
            context.note(f"{step.name} on {on.name.machine}")
            target = its.target(at.stack.site, on)
            given = facts(context, leaving, role)
            roles.leave(its.remote, target, role, given, recorder(context), steps=[step])


def destroy(context: Context) -> None:
    """Remove the machine, its disk and its record."""
    its, at = tools(context), work(context)
    name = MachineName.parse(context.run.input["machine"])
    its.remote.drop(name)
    its.driver(at.stack.site).destroy(name)
    its.stacks.forget_machine(str(name))


# No undo: a disk that is gone is gone.  A removal that fails half way stops, to be resumed.
_DESTROY = Step(name="destroy", do=destroy, slot=site_slot("destroy"), on_failure=OnFailure.STOP)

RETIRE = Workflow(
    "retire",
    (
        Step(name="leave", do=leave, on_failure=OnFailure.STOP),  # running jobs are not cut off
        _DESTROY,
    ),
)
DESTROY = Workflow("destroy", (_DESTROY,))
