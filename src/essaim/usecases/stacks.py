"""Plan, apply, take down and look at stacks."""

from __future__ import annotations

import getpass
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.config.projected import is_project
from essaim.config.serial import fingerprint, stack_from_json, stack_to_json
from essaim.model.errors import InvalidError, MovedError, Problem, UnknownError
from essaim.model.machines import ChecksMachines, Networks, Reachable
from essaim.model.plans import Change, Plan, World
from essaim.model.runs import NewRun, Run
from essaim.model.spelling import meant
from essaim.plan.diff import diff, dismantle
from essaim.plan.digest import world_fingerprint
from essaim.plan.eta import estimate
from essaim.plan.serial import plan_from_json, plan_to_json
from essaim.usecases import audit
from essaim.usecases.drift import find_drift
from essaim.usecases.host_keys import check_host_keys

if TYPE_CHECKING:
    from essaim.config.compose import Composed
    from essaim.model.stacks import Machine, Stack
    from essaim.usecases.services import Services


#: Seconds that finished runs, their logs and plans are kept: a term and its holidays.
KEEP = 180 * 24 * 3600.0
#: Changes that make a machine, of stacks and of projects.
_MAKING = ("raise", "rebuild", "host", "rehost")


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan as it lies in the store, ready to be applied unchanged."""

    id: str
    plan: Plan
    stack: Stack


def make_plan(
    services: Services, composed: Composed, *, again: bool = False, deep: bool = False
) -> StoredPlan:
    """Compare a composed stack with the world and store the difference.

    With `again`, every role is applied once more, even where nothing changed.  With `deep`, the
    machines are looked into: roles whose files, steps or daemons are not as applied are applied.
    """
    stack = composed.stack
    refuse_kept(services, stack.name)
    refuse_move(services, stack)
    world = look(services, stack)
    drift = find_drift(services, stack, composed.lab, world) if deep else {}
    changes = diff(stack, world, again=again, drift=drift)
    check_site(services, stack, changes)
    check_host_keys(services, stack, changes)
    return store(services, stack, composed.lab, changes, world)


def check_site(services: Services, stack: Stack, changes: Sequence[Change]) -> None:
    """See that the site has what new machines need, before anything is changed."""
    driver = services.driver(stack.site)
    if not isinstance(driver, ChecksMachines):
        return
    made = {change.machine for change in changes if change.verb in _MAKING}
    for name, image in stack.images.items():
        new = [each for each in stack.machines if each.image == name and str(each.name) in made]
        driver.check_machines(image, new)


def make_down_plan(services: Services, name: str) -> StoredPlan:
    """Plan the removal of everything a stack has."""
    refuse_kept(services, name)
    stack, lab = stored_stack(services, name)
    world = look(services, stack)
    return store(services, stack, lab, dismantle(name, world), world)


def read_plan(services: Services, plan_id: str) -> StoredPlan:
    """Fetch a plan made earlier."""
    body = services.stacks.get_plan(plan_id)
    if body is None:
        raise UnknownError(f"no plan {plan_id}", hint="make one with essaim plan STACK")
    return StoredPlan(plan_id, plan_from_json(body["plan"]), stack_from_json(body["stack"]))


def look(services: Services, stack: Stack) -> World:
    """Observe all that a plan rests on, in one sweep; SiteAwayError when the site is away."""
    driver = services.driver(stack.site)
    if isinstance(driver, Reachable):
        driver.check_reachable()
    network = driver.network(stack.name) if isinstance(driver, Networks) else stack.network
    return World(
        network=network.cidr if network else None,
        internet=network.internet if network else False,
        images=frozenset(
            i.digest for i in stack.images.values() if services.images.ready(i, driver.form)
        ),
        machines={str(seen.name): seen for seen in driver.observe(stack.name)},
        applied=services.stacks.applied(stack.name),
    )


def apply(services: Services, stored: StoredPlan) -> str:
    """Start carrying out a plan, exactly as stored; returns the run's id.

    MovedError when the world is no longer what the plan was made from; HeldError when somebody
    else is at work on the stack.
    """
    if world_fingerprint(look(services, stored.stack)) != stored.plan.world:
        raise MovedError(
            f"the world has moved since plan {stored.id} was made for {stored.plan.stack}",
            hint="plan again and look at what changed",
        )
    prune(services)
    run_id = secrets.token_hex(4)
    run = run_over(services, stored, "apply", run_id)
    audit.record_local(services, "apply", run.subject, run.who)
    services.engine.start([run])
    return run_id


def run_over(
    services: Services,
    stored: StoredPlan,
    workflow: str,
    run_id: str,
    *,
    who: str = "",
    **more: str,
) -> NewRun:
    """A run that carries out a plan, and holds its stack meanwhile; `more` is for its steps."""
    site = stored.stack.site.name
    return NewRun(
        id=run_id,
        workflow=workflow,
        subject=stored.plan.stack,
        input={"plan": stored.id, "site": site, **more},
        holds=_hold(stored.plan.stack),
        who=who or f"{getpass.getuser()}@{socket.gethostname()}",
        site=site if services.site_queues else "",
    )


def prune(services: Services) -> None:
    """Forget runs, their logs and plans that nobody will ask for any more."""
    services.journal.prune(KEEP)
    services.stacks.prune_plans(KEEP)


def give_way(services: Services, name: str) -> None:
    """Set aside what a dead or stopped earlier apply left unfinished on a stack.

    The next plan is made from what is seen, so nothing that was done is lost or done twice.
    Raises HeldError when the earlier apply is alive.
    """
    services.engine.release_dead()
    services.engine.supersede(_hold(name))


def follow(services: Services, run_id: str) -> Run:
    """Work until a run is over or stuck, and return it as it then is."""
    services.courier.wait(run_id)
    run = services.journal.get(run_id)
    if run is None:
        raise UnknownError(f"no run {run_id}", hint="essaim runs lists them")
    return run


def stored_stack(services: Services, name: str) -> tuple[Stack, Path]:
    """The stack as last applied, and the lab it came from."""
    body = services.stacks.get_stack(name)
    if body is None:
        names = services.stacks.list_stacks()
        hint = meant(name, names, kind="there are") or "there are none yet: essaim up STACK"
        raise UnknownError(f"no stack called {name}", hint=hint)
    return stack_from_json(body["stack"]), Path(body["lab"])


def with_image(services: Services, image: str) -> list[str]:
    """List the stacks with machines that are made from an image."""
    names = services.stacks.list_stacks()
    return [name for name in names if image in stored_stack(services, name)[0].images]


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """One machine as wanted and as seen."""

    name: str
    power: str  #: on, off, absent
    address: str
    roles: Sequence[str]
    pending: Sequence[str]  #: roles not applied in this boot
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StackStatus:
    """A stack and its machines."""

    name: str
    site: str
    source: str
    machines: Sequence[MachineStatus]
    run: Run | None  #: the last apply
    notes: Sequence[str] = ()  #: what holds for its machines on this computer and may surprise


#: Keys of what a driver says of a machine that people should know, once for the stack.
_NOTED = ("isolation", "limits", "disk")


def status(services: Services, name: str) -> StackStatus:
    """Look at a stack's machines now."""
    stack, _lab = stored_stack(services, name)
    world = look(services, stack)
    machines = [_machine_status(machine, world) for machine in stack.machines]
    runs = services.journal.list(subject=name, workflow="apply", limit=1)
    notes = dict.fromkeys(
        str(machine.detail[key]) for machine in machines for key in _NOTED if key in machine.detail
    )
    last = runs[0] if runs else None
    return StackStatus(name, stack.site.name, stack.source, machines, last, list(notes))


def _machine_status(machine: Machine, world: World) -> MachineStatus:
    name = str(machine.name)
    seen = world.machines.get(name)
    applied = {role: world.applied.get((name, role)) for role in machine.roles}
    return MachineStatus(
        name=name,
        power=seen.power.value if seen else "absent",
        address=machine.address,
        roles=machine.roles,
        pending=[r for r, was in applied.items() if not (seen and was and was.boot == seen.boot)],
        detail=dict(seen.detail) if seen else {},
    )


def _hold(name: str) -> str:
    return f"stack:{name}"


def store(
    services: Services,
    stack: Stack,
    lab: Path,
    changes: Sequence[Change],
    world: World | None = None,
) -> StoredPlan:
    """Make a plan of these changes, and keep it, for the steps of runs to find, unless it is empty.

    With the world they were made from, it says how long it will take, and is applied only while the
    world is still so; without, whoever makes it starts its runs at once.
    """
    plan = Plan(stack=stack.name, changes=tuple(changes), world="", wanted=fingerprint(stack))
    if world is not None:
        seconds = estimate(changes, services.journal.durations()) if changes else 0.0
        plan = replace(plan, world=world_fingerprint(world), seconds=seconds)
    stored = StoredPlan(secrets.token_hex(4), plan, stack)
    if changes:
        body = {"plan": plan_to_json(plan), "stack": stack_to_json(stack), "lab": str(lab)}
        services.stacks.put_plan(stored.id, stack.name, body)
    return stored


def refuse_kept(services: Services, name: str) -> None:
    """Machines of a roster or a project have names and more that go with them."""
    if services.rosters.get(name) is not None:
        hint = f"essaim students apply or essaim students remove {name}"
        raise InvalidError([Problem(f"{name} is a roster, not a stack of your own", hint=hint)])
    body = services.stacks.get_stack(name)
    if body is not None and is_project(stack_from_json(body["stack"])):
        hint = f"essaim project apply or essaim project down {name}"
        raise InvalidError([Problem(f"{name} is a project, not a stack of your own", hint=hint)])


def refuse_move(services: Services, stack: Stack) -> None:
    """A stack lives on one site; moving it is another undertaking than changing it."""
    body = services.stacks.get_stack(stack.name)
    if body is None:
        return
    site = stack_from_json(body["stack"]).site.name
    if site != stack.site.name:
        raise InvalidError(
            [
                Problem(
                    f"stack {stack.name} lives on site {site}, not {stack.site.name}",
                    hint=f"give this one another name, or essaim down {stack.name} first",
                )
            ]
        )
