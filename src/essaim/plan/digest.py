"""Fingerprints of what a role depends on, so that a plan can say what changed and why."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from essaim.model.plans import World
from essaim.model.roles import Role
from essaim.model.stacks import Machine, Stack


def short_hash(value: Any) -> str:
    """Hash anything JSON can say; equal values give equal hashes on every computer."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def machine_facts(machine: Machine) -> dict[str, Any]:
    """Everything a role's templates may read of a machine."""
    return {
        "name": str(machine.name),
        "group": machine.group,
        "index": machine.index,
        "address": machine.address,
        "image": machine.image,
        "size": [machine.size.cores, machine.size.memory, machine.size.disk],
        "roles": machine.roles,
        "labels": dict(machine.labels),
    }


class RoleDigests:
    """Digests of roles on machines.  What all machines of a role share is computed once."""

    #: The parts of a digest, in order, as a reason to apply the role again.
    PARTS = ("its files changed", "its variables changed", "its machine changed", "members changed")

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._facts = {machine.name: machine_facts(machine) for machine in stack.machines}
        self._shared = {name: self._of_role(role) for name, role in stack.roles.items()}

    def _of_role(self, role: Role) -> tuple[str, str, str]:
        variables = {**role.vars, **self._stack.vars.get(role.name, {})}
        members = {key: self._carrying(carried) for key, carried in role.members.items()}
        return role.digest[:16], short_hash(variables), short_hash(members)

    def _carrying(self, role: str) -> list[dict[str, Any]]:
        return [self._facts[m.name] for m in self._stack.machines if role in m.roles]

    def of(self, machine: Machine, role: str) -> str:
        """The digest of one role on one machine: four parts joined by `:`."""
        files, variables, members = self._shared[role]
        own = short_hash([self._facts[machine.name], self._stack.network.cidr])
        return f"{files}:{variables}:{own}:{members}"

    @classmethod
    def differences(cls, before: str, after: str) -> list[str]:
        """Say in words which parts differ between two digests."""
        pairs = zip(cls.PARTS, before.split(":"), after.split(":"), strict=False)
        return [words for words, old, new in pairs if old != new]


def world_fingerprint(world: World) -> str:
    """Fingerprint what a plan rests on.  Images are left out: building one moves nothing."""
    machines = {
        name: (seen.power, seen.address, seen.image, seen.boot)
        for name, seen in world.machines.items()
    }
    # What came later counts where it is used: plans made before still fit.
    network = [world.network, "internet"] if world.internet else world.network
    return short_hash([network, machines, _applied(world.applied.values())])


def _applied(records: Iterable[Any]) -> Mapping[str, Any]:
    return {f"{a.machine} {a.role}": (a.digest, a.needs, a.boot) for a in records}
