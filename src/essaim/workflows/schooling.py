"""What the steps of students' machines act through, and what they do to one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from essaim.engine.workflow import Context
from essaim.model.errors import ClashError, RejectedError, StuckError, UnknownError
from essaim.model.machines import Cards, Seed
from essaim.plan.rosters import ACCOUNT, HOME, HOST, LOGIN, PERSON, UID, desktop_of, host_of
from essaim.workflows.moving import Claims, move
from essaim.workflows.tools import machine, tools, work

if TYPE_CHECKING:
    from essaim.model.journal import Journal
    from essaim.model.runs import Run
    from essaim.model.school import Addresses, Desktops, Host, Names
    from essaim.model.stacks import Machine, Site
    from essaim.store.rosters import Rosters


#: Drivers that bound how many machines start at once themselves, and by node.
PACED = frozenset({"proxmox"})


@dataclass(frozen=True, slots=True, kw_only=True)
class School:
    """What students' machines need besides a driver.  None: the site has no such server."""

    rosters: Rosters
    journal: Journal
    names: Callable[[Site], Names | None]
    addresses: Callable[[Site], Addresses | None]
    desktops: Callable[[Site], Desktops | None]
    claims: Claims = field(default_factory=Claims)
    gateway_keys: Callable[[], Sequence[str]] | None = None  #: with which gateways log in


def school(context: Context) -> School:
    """What a step of a student's machine acts through."""
    found = tools(context).school
    if found is None:
        raise StuckError("this process knows no rosters")
    return found


def seed_of(context: Context, wanted: Machine) -> Seed:
    """Give the machine its identity, and its student an account where none comes from elsewhere."""
    its = tools(context)
    labels = wanted.labels
    person = {"name": labels[LOGIN], "gecos": labels.get(PERSON, "")}
    if labels.get(UID):
        person["uid"] = labels[UID]
    if labels.get(HOME):
        person["homedir"] = labels[HOME]
    return Seed(
        hostname=labels.get(HOST, "").partition(".")[0] or wanted.name.machine,
        host_key=its.keyring.host_key(wanted.name),
        authorized_keys=(its.keyring.user_public_key(),),
        user_data={} if labels.get(ACCOUNT) else {"users": ["default", person]},
    )


def placed(context: Context) -> Machine:
    """The machine as wanted, with the address it has by now: the planned one may be given away."""
    wanted = machine(context)
    student = school(context).rosters.of_machine(str(wanted.name))
    if student is None or student.address in ("", wanted.address):
        return wanted
    return replace(wanted, address=student.address)


def create(context: Context) -> dict[str, Any]:
    """Make the machine, powered off; a driver that takes long is asked again by the engine."""
    return _create(context, machine(context))


def _create(context: Context, wanted: Machine) -> dict[str, Any]:
    at = work(context)
    image = at.stack.images[wanted.image]
    driver = tools(context).driver(at.stack.site)
    driver.create(wanted, at.stack.network, image, seed_of(context, wanted))
    return {"address": wanted.address}


def destroy(context: Context) -> None:
    """Remove the machine and its disk."""
    its, name = tools(context), machine(context).name
    its.remote.drop(name)
    its.driver(work(context).stack.site).destroy(name)


def start(context: Context) -> None:
    """Power it on."""
    its, name = tools(context), machine(context).name
    its.remote.drop(name)
    its.driver(work(context).stack.site).start(name)


def stop(context: Context) -> None:
    """Power it off."""
    its, name = tools(context), machine(context).name
    its.remote.drop(name)
    its.driver(work(context).stack.site).stop(name)


def admit(context: Context) -> dict[str, Any]:
    """Let the machine have its address from DHCP; if that is given away by now, another one."""
    tried: set[str] = set()
    while True:
        wanted = placed(context)
        if wanted.address != _made_with("create", context, wanted):
            _create(context, wanted)
        server, host = _dhcp(context, wanted)
        try:
            if server is not None and host.mac:
                server.admit(host)
        except ClashError as clash:
            _exchange(context, wanted, tried, clash)
        else:
            return {"address": wanted.address}


def _exchange(context: Context, wanted: Machine, tried: set[str], clash: ClashError) -> None:
    """Leave its address to whoever has it by now, and take another one."""
    # First: once another address is written down, nobody remembers this one.
    dismiss(context)
    unname(context)
    move(context, school(context), wanted, tried, clash)


def _made_with(step: str, context: Context, wanted: Machine) -> str:
    """The address with which a step was done."""
    return str(context.outputs.get(step, {}).get("address", wanted.address))


def dismiss(context: Context) -> None:
    """Let it have no address from DHCP any more."""
    server, host = _dhcp(context, placed(context))
    if server is not None and host.mac:
        server.dismiss(host)


def _dhcp(context: Context, wanted: Machine) -> tuple[Addresses | None, Host]:
    site = work(context).stack.site
    server, driver = school(context).addresses(site), tools(context).driver(site)
    card = ""
    if server is not None and isinstance(driver, Cards):
        with suppress(UnknownError):  # gone with the machine
            card = driver.card(wanted.name)
    return server, host_of(wanted, card)


def name(context: Context) -> None:
    """Give it its name in DNS; an address that leads to somebody else by now is exchanged."""
    server, tried = school(context).names(work(context).stack.site), set[str]()
    while server is not None and machine(context).labels.get(HOST):
        wanted = placed(context)
        if wanted.address != _made_with("admit", context, wanted):
            admit(context)
            wanted = placed(context)
        try:
            server.name(host_of(wanted))
        except ClashError as clash:
            _exchange(context, wanted, tried, clash)
        else:
            return


def unname(context: Context) -> None:
    """Take its name in DNS away."""
    server, host = school(context).names(work(context).stack.site), host_of(placed(context))
    if server is not None and host.name:
        server.unname(host)


def publish(context: Context) -> None:
    """Let its student come in from a browser."""
    server = school(context).desktops(work(context).stack.site)
    desktop = desktop_of(placed(context))
    if server is not None and desktop is not None:
        server.publish(desktop)


def withdraw(context: Context) -> None:
    """Let nobody come in from a browser any more."""
    server = school(context).desktops(work(context).stack.site)
    desktop = desktop_of(machine(context))
    if server is not None and desktop is not None:
        server.withdraw(desktop.name, desktop.group)


def check_address(context: Context) -> None:
    """See that the address is still the machine's: a run may be resumed long after its plan."""
    wanted = machine(context)
    student = school(context).rosters.of_machine(str(wanted.name))
    if student is None or student.address != wanted.address:
        raise RejectedError(
            f"{wanted.name} does not have the address {wanted.address} any more",
            hint="apply the roster again",
        )


def why(context: Context) -> str:
    """Why this run could not go on, in words: the journal has it before anything is undone."""
    found = school(context).journal.get(context.run.id)
    return found.error if found else ""


def start_slot(run: Run) -> str:
    """Name the slot of starts of a site; one as wide as can be where its driver has its own."""
    kind = "paced" if run.input.get("driver") in PACED else "start"
    return f"{kind}:{run.input['site']}"
