"""Bring a machine to where it answers an authenticated command over SSH."""

from __future__ import annotations

import time
from contextlib import suppress

from essaim.config.serial import machine_to_json
from essaim.engine.workflow import Backoff, Context, OnFailure, Step, Workflow
from essaim.model.errors import EssaimError, HostKeyError, TransientError
from essaim.model.machines import Consoles, Driver, Seed, Slow
from essaim.model.names import MachineName
from essaim.model.runs import Again
from essaim.workflows import host_keys
from essaim.workflows.configuring import recorder
from essaim.workflows.seeding import user_data
from essaim.workflows.settling import ANSWER_WITHIN, settle
from essaim.workflows.tools import machine, site_slot, tools, work

#: Lines of a silent machine's console that are kept.
LAST_LINES = 60


def create(context: Context) -> None:
    """Make the machine's disk and identity, powered off."""
    its, at = tools(context), work(context)
    wanted = machine(context)
    seed = Seed(
        hostname=wanted.name.machine,
        host_key=its.keyring.host_key(wanted.name),
        authorized_keys=(its.keyring.user_public_key(),),
        user_data=user_data(context, wanted),
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


def reach(context: Context) -> Again | None:
    """Wait until it answers (port, banner, authenticated command) and has prepared itself."""
    its, at = tools(context), work(context)
    wanted, driver = machine(context), its.driver(at.stack.site)
    if (again := host_keys.learn(context, wanted)) is not None:
        return again
    context.note("waiting for SSH")
    try:
        its.remote.reach(its.target(at.stack.site, wanted), within=_patience(context, driver))
    except HostKeyError:
        if not host_keys.learn_again(context, wanted):
            raise
        return Again(0.5, note="reading its host key again")
    except TransientError as error:
        if not isinstance(driver, Consoles):
            raise
        _keep_console(context, driver, wanted.name)
        look = f"see why: essaim console --log {wanted.name}"
        raise TransientError(error.what, hint=look) from error
    # A machine that boots like a computer answers before it has done all it does at a first boot.
    return settle(context, wanted) if isinstance(driver, Slow) else None


def _patience(context: Context, driver: Driver) -> float:
    if not isinstance(driver, Slow):
        return ANSWER_WITHIN
    # One budget for all tries: whoever was silent for minutes gets no more of them.  Some are left
    # for a machine that has answered, and is busy with its first boot since.
    return max(3 * ANSWER_WITHIN, driver.answers_within() - context.elapsed)


def _keep_console(context: Context, driver: Consoles, name: MachineName) -> None:
    """Put the last a silent machine said into the log of the run."""
    with suppress(EssaimError):  # what is wrong with the machine is worth more than what is here
        lines = driver.console_log(name).splitlines()[-LAST_LINES:]
        recorder(context)(
            machine=str(name),
            command="console",
            exit_code=1,
            output="".join(f"{line}\n" for line in lines),
            started_at=time.time() - context.elapsed,
            seconds=context.elapsed,
        )


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
