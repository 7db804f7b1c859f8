"""The planner: what is wanted and what was seen, in; an ordered list of changes, out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from essaim.model.errors import InvalidError, Problem
from essaim.model.machines import Observed, Power
from essaim.model.plans import Action, Change, Drift, World
from essaim.model.stacks import Machine, Stack
from essaim.plan.digest import RoleDigests

NETWORK = "network"
_GIVEN_BACK = "given back as it is: it was adopted"

#: By machine (STACK/MACHINE) and role.
Drifts = Mapping[tuple[str, str], Drift]
_NO_DRIFT: Drifts = MappingProxyType({})


def diff(
    stack: Stack, world: World, *, again: bool = False, drift: Drifts = _NO_DRIFT
) -> tuple[Change, ...]:
    """List the changes that would make `world` match `stack`, providers before those who need them.

    With `again`, every role is applied once more; with `drift`, those that drifted.  Laws: without
    them, applied to its own result it is empty; every `waits` names an earlier change.
    """
    return tuple(_Diff(stack, world, again=again, drift=drift).changes())


def dismantle(stack: str, world: World) -> tuple[Change, ...]:
    """List the changes that leave nothing of a stack."""
    machines = [
        Change(
            key=seen.name.machine,
            action=Action.REMOVE,
            verb="destroy",
            machine=name,
            reason=_GIVEN_BACK if seen.adopted else "the stack goes",
            gives_back=seen.adopted,
        )
        for name, seen in sorted(world.machines.items())
    ]
    network = Change(
        key=NETWORK,
        action=Action.REMOVE,
        verb="close",
        machine=stack,
        reason="the stack goes",
        waits=tuple(change.key for change in machines),
    )
    return (*machines, network)


class _Diff:
    """One planning.  Holds the indexes that keep it linear in the number of machines."""

    def __init__(self, stack: Stack, world: World, *, again: bool, drift: Drifts) -> None:
        self.stack = stack
        self.again = again
        self.drift = drift
        self.moved_network = world.network is not None and world.network != stack.network.cidr
        # A network of another shape takes its machines with it.
        self.world = World(images=world.images) if self.moved_network else world
        self.no_network = world.network is None
        self.internet = world.internet
        self.digests = RoleDigests(stack)
        self.machine_change: dict[str, Change] = {}
        self.role_change: dict[tuple[str, str], Change] = {}
        self.retired: dict[str, list[str]] = defaultdict(list)  # role -> keys of retiring machines
        self.gates: dict[str, tuple[str, ...]] = {}
        self.visiting: list[tuple[str, str]] = []
        self.first_with_role: dict[str, Machine] = {}
        for machine in stack.machines:
            for role in machine.roles:
                self.first_with_role.setdefault(role, machine)

    def changes(self) -> Iterator[Change]:
        yield from self.networks()
        yield from self.builds()
        yield from self.retirements()
        yield from self.machines()
        yield from self.roles()

    # -- network, images, machines ------------------------------------------------------------

    def networks(self) -> Iterator[Change]:
        cidr = self.stack.network.cidr
        if self.no_network:
            reason = f"{cidr}, with internet access" if self.stack.network.internet else cidr
            yield Change(
                key=NETWORK, action=Action.ADD, verb="open", machine=self.stack.name, reason=reason
            )
        elif self.moved_network:
            yield Change(
                key=NETWORK,
                action=Action.CHANGE,
                verb="reopen",
                machine=self.stack.name,
                reason=f"becomes {cidr}; every machine is made anew",
            )
        elif self.internet != self.stack.network.internet:
            yield Change(
                key=NETWORK,
                action=Action.CHANGE,
                verb="open",
                machine=self.stack.name,
                reason=f"internet access {'closes' if self.internet else 'opens'}",
            )

    def builds(self) -> Iterator[Change]:
        for name, image in sorted(self.stack.images.items()):
            if image.digest not in self.world.images:
                yield Change(
                    key=f"image-{name}", action=Action.ADD, verb="build", reason="not in the cache"
                )

    def retirements(self) -> Iterator[Change]:
        wanted = {str(machine.name) for machine in self.stack.machines}
        roles_of = defaultdict(list)
        for machine, role in self.world.applied:
            roles_of[machine].append(role)
        for name in sorted(self.world.machines.keys() - wanted):
            seen = self.world.machines[name]
            key = seen.name.machine
            for role in roles_of[name]:
                self.retired[role].append(key)
            yield Change(
                key=key,
                action=Action.REMOVE,
                verb="retire",
                machine=name,
                reason=_GIVEN_BACK if seen.adopted else "no longer in the stack",
                gives_back=seen.adopted,
            )

    def machines(self) -> Iterator[Change]:
        applied = defaultdict(set)
        for name, role in self.world.applied:
            applied[name].add(role)
        for machine in self.stack.machines:
            name = str(machine.name)
            change = self.machine(machine, self.world.machines.get(name), applied[name])
            if change:
                self.machine_change[name] = change
                yield change

    def machine(self, machine: Machine, seen: Observed | None, applied: set[str]) -> Change | None:
        decision = self.decide(machine, seen, applied)
        if decision is None:
            return None
        action, verb, reason = decision
        image = self.stack.images[machine.image]
        build = verb != "start" and image.digest not in self.world.images
        return Change(
            key=machine.name.machine,
            action=action,
            verb=verb,
            machine=str(machine.name),
            reason=reason,
            waits=(f"image-{machine.image}",) if build else (),
            gives_back=verb == "rebuild" and seen is not None and seen.adopted,
        )

    def decide(
        self, machine: Machine, seen: Observed | None, applied: set[str]
    ) -> tuple[Action, str, str] | None:
        if seen is None:
            return Action.ADD, "raise", "not there"
        if why := self.outdated(machine, seen, applied):
            back = "; the adopted one is given back" if seen.adopted else ""
            return Action.CHANGE, "rebuild", f"{why}{back}"
        if seen.power is Power.OFF:
            return Action.CHANGE, "start", "is off"
        return None

    def outdated(self, machine: Machine, seen: Observed, applied: set[str]) -> str:
        """Say why a machine has to be made anew; nothing when it need not."""
        if seen.image != self.stack.images[machine.image].digest:
            return f"image {machine.image} changed"
        if seen.address != machine.address:
            return f"address moves from {seen.address} to {machine.address}"
        if seen.shared != machine.shared:
            return f"shares {', '.join(machine.shared) or 'no folders'} with the others"
        if extra := applied - set(machine.roles):
            return f"role {min(extra)} is no longer wanted, and a role cannot be taken back"
        return ""

    # -- roles ----------------------------------------------------------------------------------

    def roles(self) -> Iterator[Change]:
        pending = [(m, role) for m in self.stack.machines for role in m.roles]
        wanted = {
            (str(m.name), role): reason for m, role in pending if (reason := self.reason(m, role))
        }
        # Visited depth first, so that every provider is listed before those who wait for it.
        for machine, role in pending:
            yield from self.role(machine, role, wanted)

    def reason(self, machine: Machine, role: str) -> str:
        name = str(machine.name)
        change = self.machine_change.get(name)
        if change:
            return {"raise": "new machine", "start": "machine was off"}.get(
                change.verb, "machine is made anew"
            )
        before = self.world.applied.get((name, role))
        if before is None:
            return "not applied yet"
        if before.boot != self.world.machines[name].boot:
            return "machine has restarted since"
        differences = RoleDigests.differences(before.digest, self.digests.of(machine, role))
        if not differences and (drifted := self.drift.get((name, role))):
            return drifted.reason
        return ", ".join(differences) or ("asked for again" if self.again else "")

    def role(
        self, machine: Machine, role: str, wanted: dict[tuple[str, str], str]
    ) -> Iterator[Change]:
        at = (str(machine.name), role)
        if at in self.role_change or at not in wanted:
            return
        self.refuse_cycle(at)
        self.visiting.append(at)
        before = machine.roles[: machine.roles.index(role)]
        for earlier in before:
            yield from self.role(machine, earlier, wanted)
        for provider in self.stack.roles[role].needs.values():
            yield from self.role(self.first_with_role[provider], provider, wanted)
        for group in machine.after:
            yield from self.gate(group, wanted)
        change = Change(
            key=f"{machine.name.machine}.{role}",
            action=Action.CHANGE if at[0] not in self.machine_change else Action.ADD,
            verb="configure",
            machine=at[0],
            role=role,
            reason=wanted[at],
            digest=self.digests.of(machine, role),
            waits=self.waits(machine, role),
            detail=drifted.detail if (drifted := self.drift.get(at)) else "",
        )
        self.role_change[at] = change
        self.visiting.remove(at)
        yield change

    def refuse_cycle(self, at: tuple[str, str]) -> None:
        if at not in self.visiting:
            return
        circle = [*self.visiting[self.visiting.index(at) :], at]
        words = " waits for ".join(f"{machine}:{role}" for machine, role in circle)
        hint = "change the order of `roles`, or an `after`, so that one of them comes first"
        raise InvalidError([Problem(f"cyclic order: {words}", hint=hint)])

    def waits(self, machine: Machine, role: str) -> tuple[str, ...]:
        """Barriers only where needed: own machine, own earlier roles, providers, groups."""
        name = str(machine.name)
        before: list[Change | None] = [self.machine_change.get(name)]
        position = machine.roles.index(role)
        before += [self.role_change.get((name, r)) for r in machine.roles[:position]]
        definition = self.stack.roles[role]
        for provider in dict.fromkeys(definition.needs.values()):
            at = str(self.first_with_role[provider].name)
            before.append(self.role_change.get((at, provider)))
        keys = [change.key for change in before if change]
        for group in machine.after:
            keys += self.gates[group]
        # Members leave (and are drained) while the one who knows them still does.
        for member in dict.fromkeys(definition.members.values()):
            keys += self.retired[member]
        return tuple(dict.fromkeys(keys))

    def gate(self, group: str, wanted: dict[tuple[str, str], str]) -> Iterator[Change]:
        """Make one change that stands for a whole group, so that waits stay linear in number."""
        if group in self.gates:
            return
        keys = []
        for machine in self.stack.machines:
            if machine.group != group:
                continue
            for role in machine.roles:
                yield from self.role(machine, role, wanted)
            done = [self.machine_change.get(str(machine.name))]
            done += [self.role_change.get((str(machine.name), role)) for role in machine.roles]
            keys += [change.key for change in done if change][-1:]
        if len(keys) > 1:
            gate = Change(
                key=f"gate-{group}",
                action=Action.CHANGE,
                verb="gate",
                reason=f"all of {group}",
                waits=tuple(keys),
            )
            self.gates[group] = (gate.key,)
            yield gate
        else:
            self.gates[group] = tuple(keys)
