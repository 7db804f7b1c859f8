"""Projects: see what a file comes to, carry it out, play again, look, take down."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.config.plays import resolve
from essaim.config.projected import is_project, play_of
from essaim.config.serial import machine_from_json, stack_from_json
from essaim.model.errors import EssaimError, InvalidError, Problem, UnknownError
from essaim.model.machines import Networks
from essaim.model.plans import Action, Applied, Change, World
from essaim.model.spelling import meant
from essaim.plan.diff import diff, dismantle
from essaim.plan.digest import short_hash
from essaim.plan.rosters import host_of
from essaim.usecases.host_keys import check_host_keys
from essaim.usecases.stacks import StoredPlan, check_site, look, store
from essaim.workflows.playing import PLAYBOOK, secrets_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from essaim.config.projects import Project
    from essaim.model.machines import Observed
    from essaim.model.stacks import Machine, Stack
    from essaim.usecases.services import Services

#: What a stack's changes become for machines that have names in DNS.
VERBS = {"raise": "host", "rebuild": "rehost", "retire": "unhost", "destroy": "unhost"}
#: The parts of a play's digest, in order, as a reason to play it again.
PARTS = (
    "its playbook changed",
    "its extravars changed",
    "its group, tags or executor changed",
    "its machines changed",
)
KEY = "play"


def plan(services: Services, project: Project, *, play: bool | None = None) -> StoredPlan:
    """Compare a project with what is seen, and store the difference.

    The playbook is played when what it is given or plays on has changed; always with `play` true,
    never when it is false.
    """
    stack = project.stack
    _refuse(services, stack)
    world = look(services, stack)
    changes = [_renamed(change) for change in diff(stack, _machines_alone(world))]
    check_site(services, stack, changes)
    check_host_keys(services, stack, changes)
    changes += _names(services, stack, changes)
    if play is not False:
        changes += _plays(services, project, world, changes, again=bool(play))
    return store(services, stack, project.lab, changes, world)


def plan_play(services: Services, name: str) -> StoredPlan:
    """Plan to play a project's playbook once more, as it was last applied, and nothing else."""
    stack, lab = stored(services, name)
    found = play_of(stack)
    if found is None:
        raise UnknownError(f"project {name} has no playbook", hint="ansible: in its file names one")
    change = _play_change(stack, [], Action.CHANGE, "asked for again")
    return store(services, stack, lab, [change], look(services, stack))


def plan_down(services: Services, name: str) -> StoredPlan:
    """Plan the removal of everything a project has, also of its names."""
    stack, lab = stored(services, name)
    world = look(services, stack)
    seen = dismantle(name, world)
    # A machine that is gone may have left its name.
    gone = [
        Change(
            key=each.partition("/")[2],
            action=Action.REMOVE,
            verb="unhost",
            machine=each,
            reason="the stack goes",
        )
        for each in services.stacks.machines(name)
        if each not in world.machines
    ]
    *machines, network = (_renamed(change) for change in seen)
    keys = tuple(change.key for change in (*machines, *gone))
    changes = [*machines, *gone, replace(network, waits=keys)]
    return store(services, stack, lab, changes, world)


def stored(services: Services, name: str) -> tuple[Stack, Path]:
    """A project as it was last applied, and its lab; UnknownError with a near spelling."""
    body = services.stacks.get_stack(name)
    stack = stack_from_json(body["stack"]) if body else None
    if stack is None or body is None or not is_project(stack):
        kind = "is a stack, but no project" if stack else "is no project"
        hint = meant(name, names(services), kind="there are") or "essaim project apply FILE"
        raise UnknownError(f"{name} {kind}", hint=hint)
    return stack, Path(body["lab"])


def names(services: Services) -> list[str]:
    """The projects there are, sorted."""
    return [
        name
        for name in services.stacks.list_stacks()
        if (body := services.stacks.get_stack(name)) and is_project(stack_from_json(body["stack"]))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLine:
    """A machine of a project, as wanted and as seen."""

    machine: str
    power: str  #: on, off, absent
    address: str
    hostname: str
    named: str  #: the address DNS answers; nothing when it has none, or there is no DNS
    played: bool  #: the playbook was played on it as it is now


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A project as it is now."""

    name: str
    site: str
    source: str
    playbook: str
    group: str
    machines: Sequence[MachineLine]


def show(services: Services, name: str) -> Shown:
    """Look at a project: its machines, their names, and whether its playbook was played."""
    stack, _lab = stored(services, name)
    world = look(services, stack)
    server = services.names(stack.site)
    named = server.named() if server is not None else {}
    found = play_of(stack)
    return Shown(
        name=name,
        site=stack.site.name,
        source=stack.source,
        playbook=found.playbook.name if found else "",
        group=found.group if found else "",
        machines=[_line(stack, each, world, named) for each in stack.machines],
    )


def _line(stack: Stack, each: Machine, world: World, named: Mapping[str, str]) -> MachineLine:
    seen: Observed | None = world.machines.get(str(each.name))
    applied = world.applied.get((str(each.name), PLAYBOOK))
    host = host_of(each)
    return MachineLine(
        machine=str(each.name),
        power=seen.power.value if seen else "absent",
        address=each.address,
        hostname=host.name,
        named=named.get(host.name, ""),
        played=applied is not None and not _differences(applied, play_digest(stack)),
    )


def left_alone(services: Services, stack: Stack) -> list[str]:
    """Say what a file asks of machines that are there, and that only a new machine would have."""
    lines = []
    for each in stack.machines:
        before = _before(services, each)
        if before is None or before.address != each.address or before.image != each.image:
            continue  # it is made, or made anew
        old, new = _lasting(before), _lasting(each)
        lines += [
            f"{each.name}: {key} stays {old[key] or 'as it is'}, though the file says {new[key]}"
            for key in new
            if old[key] != new[key]
        ]
    return lines


def _lasting(machine: Machine) -> dict[str, str]:
    size, labels = machine.size, machine.labels
    return {
        "memory": str(size.memory),
        "cores": str(size.cores),
        "rootfs": str(size.disk or ""),
        **{key: labels.get(key, "") for key in ("node", "storage", "bridge", "vlan", "gateway")},
    }


# -- what has to be done ------------------------------------------------------------------------


def play_digest(stack: Stack) -> str:
    """Digest what a playbook is given and plays on: four parts joined by `:`."""
    found = play_of(stack)
    if found is None:
        return ""
    return ":".join(
        (
            found.files or short_hash(str(found.playbook)),
            short_hash(found.extravars),
            short_hash([found.group, found.tags, found.executor, found.template]),
            short_hash(sorted([str(m.name), m.address, host_of(m).name] for m in stack.machines)),
        )
    )


def _renamed(change: Change) -> Change:
    return replace(change, verb=VERBS.get(change.verb, change.verb))


def _machines_alone(world: World) -> World:
    """Leave out what was played: a playbook is no role, and is taken back from nobody."""
    kept = {key: value for key, value in world.applied.items() if key[1] != PLAYBOOK}
    return replace(world, applied=kept)


def _names(services: Services, stack: Stack, changes: Sequence[Change]) -> Iterator[Change]:
    """Machines that stay as they are, and whose name DNS does not know, or knows otherwise."""
    server = services.names(stack.site)
    if server is None:
        return
    made = {change.machine for change in changes if change.verb in VERBS.values()}
    staying = [each for each in stack.machines if str(each.name) not in made]
    if not any(host_of(each).name for each in staying):
        return
    named = server.named()
    for each in staying:
        host, before = host_of(each), _before(services, each)
        old = before is not None and host_of(before) != host
        if host.name and (named.get(host.name) != host.address or old):
            reason = "has another name" if old else "not in DNS"
            yield Change(
                key=f"{each.name.machine}.name",
                action=Action.CHANGE,
                verb="name",
                machine=str(each.name),
                reason=reason,
            )


def _before(services: Services, machine: Machine) -> Machine | None:
    body = services.stacks.get_machine(str(machine.name))
    return machine_from_json(body) if body else None


def _plays(
    services: Services, project: Project, world: World, changes: Sequence[Change], *, again: bool
) -> list[Change]:
    stack = project.stack
    if play_of(stack) is None:
        return []
    reasons = _reasons(services, project, world, changes)
    if again and not reasons:
        reasons = ["asked for again"]
    if not reasons:
        return []
    action = Action.CHANGE if _applied(stack, world) else Action.ADD
    return [_play_change(stack, changes, action, ", ".join(reasons))]


def _reasons(
    services: Services, project: Project, world: World, changes: Sequence[Change]
) -> list[str]:
    """Why the playbook is to be played; nothing when it was played with all as it is."""
    stack = project.stack
    made = {change.machine for change in changes if change.verb in ("host", "rehost")}
    if made:
        return [f"{len(made)} new machine{'s' if len(made) > 1 else ''}"]
    applied = _applied(stack, world)
    if len(applied) < len(stack.machines):
        return ["not played yet"]
    digest = play_digest(stack)
    different = {words for each in applied for words in _differences(each, digest)}
    known = _secrets(services, project)
    if known is not None and any(each.needs != known for each in applied):
        different.add("a secret changed")
    return sorted(different)


def _applied(stack: Stack, world: World) -> list[Applied]:
    keys = [(str(each.name), PLAYBOOK) for each in stack.machines]
    return [world.applied[key] for key in keys if key in world.applied]


def _differences(applied: Applied, digest: str) -> list[str]:
    pairs = zip(PARTS, applied.digest.split(":"), digest.split(":"), strict=False)
    return [words for words, old, new in pairs if old != new]


def _secrets(services: Services, project: Project) -> str | None:
    """Digest the secrets the playbook is given; None where this computer does not have them."""
    found = play_of(project.stack)
    hidden: list[str] = []
    try:
        resolve(found.extravars if found else {}, project.lab, hidden)
    except EssaimError:
        return None
    return secrets_digest(hidden, services.keyring)


def _play_change(stack: Stack, changes: Sequence[Change], action: Action, reason: str) -> Change:
    found = play_of(stack)
    return Change(
        key=KEY,
        action=action,
        verb="play",
        role=found.playbook.name if found else "",
        reason=reason,
        digest=play_digest(stack),
        waits=tuple(change.key for change in changes if change.verb not in ("open", "reopen")),
    )


# -- what cannot be -----------------------------------------------------------------------------


def _refuse(services: Services, stack: Stack) -> None:
    """A project lives on one site, under a name and with addresses that nobody else has there."""
    problems = []
    body = services.stacks.get_stack(stack.name)
    before = stack_from_json(body["stack"]) if body else None
    if before is not None and not is_project(before):
        what = f"there is a stack called {stack.name}, and it is no project"
        problems.append(Problem(what, hint="choose another ansible.group, or --name"))
    elif before is not None and before.site.name != stack.site.name:
        what = f"project {stack.name} lives on site {before.site.name}, not {stack.site.name}"
        hint = f"choose another --name, or essaim project down {stack.name} first"
        problems.append(Problem(what, hint=hint))
    problems += _taken(services, stack)
    if problems:
        raise InvalidError(problems)


def _taken(services: Services, stack: Stack) -> Iterator[Problem]:
    """Names and addresses that machines of other projects of the site have."""
    shared = not isinstance(services.driver(stack.site), Networks)
    for other in names(services):
        theirs = stored(services, other)[0]
        if other == stack.name or theirs.site.name != stack.site.name:
            continue
        for one, each in itertools.product(theirs.machines, stack.machines):
            if host_of(each).name and host_of(one).name == host_of(each).name:
                yield Problem(f"{each.name}: {host_of(each).name} is the name of {one.name}")
            if shared and one.address == each.address:
                yield Problem(f"{each.name}: {each.address} is the address of {one.name}")
