"""Bring a machine to where it answers an authenticated command over SSH."""

from __future__ import annotations

from essaim.config.serial import machine_to_json
from essaim.engine.workflow import Backoff, Context, OnFailure, Step, Workflow
from essaim.model.machines import Seed
from essaim.workflows.tools import machine, site_slot, tools, work

#: Seconds a machine may take from power-on to its first answer before it counts as silent.
ANSWER_WITHIN = 20.0


def create(context: Context) -> None:
    """Make the machine's disk and identity, powered off."""
    its, at = tools(context), work(context)
    wanted = machine(context)
    seed = Seed(
        hostname=wanted.name.machine,
        host_key=its.keyring.host_key(wanted.name),
        authorized_keys=(its.keyring.user_public_key(),),
    )
    # Recorded first: should we die now, `down` and `status` already know of it.
    its.stacks.put_machine(str(wanted.name), at.stack.name, machine_to_json(wanted))
    image = at.stack.images[wanted.image]
    its.driver(at.stack.site).create(wanted, at.stack.network, image, seed)


def destroy(context: Context) -> None:
    """Remove the machine and all that is known of it."""
    its, at = tools(context), work(context)
    name = machine(context).name
    its.remote.drop(name)
    its.driver(at.stack.site).destroy(name)
    its.stacks.forget_machine(str(name))


def forget_and_destroy(context: Context) -> None:
    """Make room for the machine's successor."""
    context.note("removing its predecessor")
    destroy(context)


def start(context: Context) -> None:
    """Power it on."""
    its, at = tools(context), work(context)
    name = machine(context).name
    its.remote.drop(name)
    its.driver(at.stack.site).start(name)


def stop(context: Context) -> None:
    """Power it off again."""
    tools(context).driver(work(context).stack.site).stop(machine(context).name)


def reach(context: Context) -> None:
    """Wait until it answers: port, banner, authenticated command."""
    its, at = tools(context), work(context)
    context.note("waiting for SSH")
    its.remote.reach(its.target(at.stack.site, machine(context)), within=ANSWER_WITHIN)


_CREATE = Step(name="create", do=create, undo=destroy, slot=site_slot("create"))
_START = Step(name="start", do=start, undo=stop, slot=site_slot("start"))
_REACH = Step(
    name="reach",
    do=reach,
    retry=Backoff(attempts=3, first=1.0),
    on_failure=OnFailure.STOP,  # a silent machine is kept: its console may say why
)

RAISE = Workflow("raise", (_CREATE, _START, _REACH))

START = Workflow("start", (_START, _REACH))

# Nothing here can be undone: the predecessor's disk is gone after the first step.  So a failure
# stops, and resuming goes on towards the successor.
REBUILD = Workflow(
    "rebuild",
    tuple(
        Step(name=step.name, do=step.do, slot=step.slot, on_failure=OnFailure.STOP)
        for step in (Step(name="clear", do=forget_and_destroy), _CREATE, _START, _REACH)
    ),
)
