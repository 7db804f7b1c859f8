"""Decides what comes next in a run, from its workflow and what its journal says.  Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim.model.runs import StepState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from essaim.engine.workflow import Step, Workflow
    from essaim.model.runs import StepRecord


def first_steps(workflows: Iterable[Workflow]) -> dict[str, str]:
    """Return, by workflow, the step that begins as soon as a run is claimed.

    Not one that needs a slot, which depends on the run, nor one that is written with its end.
    """
    firsts = ((workflow.name, workflow.steps[0]) for workflow in workflows if workflow.steps)
    return {name: step.name for name, step in firsts if step.slot is None and not step.stored}


def next_do(workflow: Workflow, records: Mapping[str, StepRecord]) -> Step | None:
    """Return the first step that is not done; None when all are."""
    for step in workflow.steps:
        record = records.get(step.name)
        if record is None or record.state is not StepState.DONE:
            return step
    return None


def next_undo(workflow: Workflow, records: Mapping[str, StepRecord]) -> Step | None:
    """Return the last step whose work may still be there; None when nothing is left.

    A step that failed counts too: half of its `do` may have happened.
    """
    for step in reversed(workflow.steps):
        record = records.get(step.name)
        if step.undo is not None and record is not None and record.state is not StepState.UNDONE:
            return step
    return None
