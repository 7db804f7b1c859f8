"""Carry out what a roster comes to: one child run for each student, however many fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from essaim.config.serial import stack_to_json
from essaim.engine.workflow import Context, OnFailure, Step, Workflow
from essaim.model.machines import Networks
from essaim.model.runs import Again, NewRun, RunState, child_id
from essaim.workflows.schooling import school
from essaim.workflows.tools import tools, work

#: Children wake their parent when they end; this is only for a wake-up that got lost.
LOOK_AGAIN = 5.0


def open_network(context: Context) -> None:
    """Record the roster as a stack, and see to its network and its image."""
    its, at = tools(context), work(context)
    its.stacks.put_stack(at.stack.name, {"stack": stack_to_json(at.stack), "lab": str(at.lab)})
    driver = its.driver(at.stack.site)
    if isinstance(driver, Networks):
        driver.open_network(at.stack.name, at.stack.network)
    for image in at.stack.images.values():
        if not its.images.ready(image, driver.form):
            its.images.build(image, context.note, driver.form)


def spawn(context: Context) -> None:
    """Add one child run for each change."""
    at = work(context)
    context.spawn(
        [
            NewRun(
                id=child_id(context.run.id, change.key),
                workflow=change.verb,
                subject=change.machine,
                input={
                    "plan": context.run.input["plan"],
                    "site": at.stack.site.name,
                    "driver": at.stack.site.driver,
                    "machine": change.machine,
                    "label": context.run.input.get("label", ""),
                },
                parent=context.run.id,
                who=context.run.who,
            )
            for change in at.plan.changes
        ]
    )


def join(context: Context) -> Again | dict[str, Any]:
    """Wait for the children.  Those that failed are told of one by one; the others count."""
    counts = school(context).rosters.works.progress(context.run.id).states
    if any(counts.get(state) for state in RunState if state.moving):
        return Again(LOOK_AGAIN)
    return {state.value: count for state, count in counts.items()}


def close(context: Context) -> None:
    """Leave in the stack those who still have a machine; with nobody left, leave nothing."""
    its, at = tools(context), work(context)
    left = {
        student.machine: student.address
        for student in school(context).rosters.students(at.stack.name).values()
        if student.address
    }
    # An address may have been exchanged since the plan.
    machines = (
        replace(each, address=left[str(each.name)])
        for each in at.stack.machines
        if str(each.name) in left
    )
    stack = replace(at.stack, machines=tuple(machines))
    if stack.machines:
        its.stacks.put_stack(stack.name, {"stack": stack_to_json(stack), "lab": str(at.lab)})
        return
    driver = its.driver(stack.site)
    if isinstance(driver, Networks):
        driver.close_network(stack.name)
    its.keyring.forget(stack.name)
    its.stacks.drop_stack(stack.name)


# No undo anywhere: each child undoes its own work, and the next apply goes on from what it sees.
ROSTER = Workflow(
    "roster",
    (
        Step(name="open", do=open_network, on_failure=OnFailure.STOP),
        Step(name="spawn", do=spawn, on_failure=OnFailure.STOP),
        Step(name="join", do=join, on_failure=OnFailure.STOP),
        Step(name="close", do=close, on_failure=OnFailure.STOP),
    ),
)
