"""Build an image, and stand for a group."""

from __future__ import annotations

from essaim.engine.workflow import Context, OnFailure, Step, Workflow
from essaim.workflows.tools import tools, work


def build(context: Context) -> None:
    """Build the image unless the cache has it; two builds of one image make one."""
    name = context.run.input["change"].removeprefix("image-")
    its, stack = tools(context), work(context).stack
    its.images.build(stack.images[name], context.note, its.driver(stack.site).form)


def pass_through(_context: Context) -> None:
    """Do nothing: whoever waits for this run waits for all that it waited for."""


# No undo: an image in the cache harms nobody and serves the next stack.
BUILD = Workflow("build", (Step(name="build", do=build, on_failure=OnFailure.STOP),))
GATE = Workflow("gate", (Step(name="pass", do=pass_through),))
