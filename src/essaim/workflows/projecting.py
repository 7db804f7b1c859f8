"""The machines of a project: made with their names in DNS, and wholly undone when a part fails."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from essaim.config.projected import keys_of, network_of
from essaim.config.serial import machine_from_json, machine_to_json
from essaim.engine.workflow import Backoff, Context, OnFailure, Step, Workflow
from essaim.model.machines import Seed
from essaim.model.runs import Again
from essaim.plan.rosters import HOST as FULL_NAME
from essaim.plan.rosters import host_of
from essaim.workflows import host_keys, raising, retiring, schooling
from essaim.workflows.enrolling import HYPERVISOR, SERVERS
from essaim.workflows.schooling import school
from essaim.workflows.tools import machine, site_slot, tools, work

if TYPE_CHECKING:
    from essaim.model.stacks import Machine


def create(context: Context) -> None:
    """Make the machine, powered off, with the keys of those who administer it."""
    its, at, wanted = tools(context), work(context), machine(context)
    seed = Seed(
        hostname=wanted.labels.get(FULL_NAME) or wanted.name.machine,
        host_key=its.keyring.host_key(wanted.name),
        authorized_keys=(its.keyring.user_public_key(), *keys_of(wanted)),
    )
    # Recorded first: should we die now, `down` and `show` already know of it.
    _keep(context, wanted)
    image = at.stack.images[wanted.image]
    its.driver(at.stack.site).create(wanted, network_of(wanted, at.stack), image, seed)


def name(context: Context) -> None:
    """Give it its name in DNS; one it had before goes."""
    _keep(context, machine(context))
    schooling.name(context)


def meet(context: Context) -> Again | None:
    """Learn the host key of a machine that was not given one; see `host_keys`."""
    return host_keys.learn(context, machine(context))


def clear(context: Context) -> None:
    """Make room for the machine's successor; its name stays until there is another."""
    context.note("removing its predecessor")
    its, wanted = tools(context), machine(context)
    its.remote.drop(wanted.name)
    its.driver(work(context).stack.site).destroy(wanted.name)


def unname(context: Context) -> None:
    """Take its name in DNS away."""
    its = tools(context)
    body = its.stacks.get_machine(context.run.input["machine"])
    known = machine_from_json(body) if body else _listed(context)
    server = school(context).names(work(context).stack.site)
    if server is not None and known is not None and known.labels.get(FULL_NAME):
        server.unname(host_of(known))


def _listed(context: Context) -> Machine | None:
    return work(context).machines.get(context.run.input["machine"])


def _keep(context: Context, wanted: Machine) -> None:
    """Record the machine as it is wanted; a name it had and has no more is taken away first."""
    its, at = tools(context), work(context)
    body = its.stacks.get_machine(str(wanted.name))
    before = machine_from_json(body) if body else wanted
    server = school(context).names(at.stack.site)
    if server is not None and before.labels.get(FULL_NAME) and host_of(before) != host_of(wanted):
        server.unname(host_of(before))
    its.stacks.put_machine(str(wanted.name), at.stack.name, machine_to_json(wanted))


_CREATE = Step(
    name="create", do=create, undo=raising.destroy, slot=site_slot("create"), retry=HYPERVISOR
)
_NAME = Step(name="name", do=name, undo=schooling.unname, retry=SERVERS)
_START = Step(
    name="start", do=raising.start, undo=raising.stop, slot=site_slot("start"), retry=HYPERVISOR
)
# Unlike a stack's machine a silent one is undone, for it has taken a name and an address of others.
_REACH = Step(name="reach", do=raising.reach, retry=Backoff(attempts=3, first=1.0))

# No undo: another machine of that name is given, or shows, another key.
_MEET = Step(name="meet", do=meet, retry=Backoff(attempts=1))

_MAKING = (_CREATE, _NAME, _START, _MEET, _REACH)

HOST = Workflow("host", _MAKING)

# The predecessor's disk is gone after the first step, so a failure stops, and resuming goes on.
REHOST = Workflow(
    "rehost",
    tuple(
        replace(step, undo=None, on_failure=OnFailure.STOP)
        for step in (Step(name="clear", do=clear, retry=HYPERVISOR), *_MAKING)
    ),
)

# No undo: a machine that is there keeps what it has.
NAME = Workflow("name", (replace(_NAME, undo=None, on_failure=OnFailure.STOP),))

# No undo: what leaves is only ever finished.
UNHOST = Workflow(
    "unhost",
    (
        Step(name="unname", do=unname, retry=SERVERS, on_failure=OnFailure.STOP),
        Step(
            name="destroy",
            do=retiring.destroy,
            slot=site_slot("destroy"),
            retry=HYPERVISOR,
            on_failure=OnFailure.STOP,
        ),
    ),
)
