"""Find drift: roles whose files, steps or daemons are not as they were applied."""

from __future__ import annotations

import difflib
import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from essaim.config.secrets import references
from essaim.model.errors import EssaimError
from essaim.model.machines import Power, Slow
from essaim.model.plans import Drift
from essaim.plan.lock import LockedFile
from essaim.plan.lock_node import file_differences
from essaim.remote import roles
from essaim.remote.install import content
from essaim.remote.logs import mask
from essaim.remote.looking import due_steps, look_at_files
from essaim.remote.reading import reads
from essaim.usecases.role_facts import RoleFacts, unrecorded
from essaim.workflows.settling import ANSWER_WITHIN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from essaim.model.plans import World
    from essaim.model.roles import Role, RoleFile
    from essaim.model.stacks import Machine, Stack
    from essaim.remote.roles import Facts
    from essaim.remote.ssh import Remote, Target
    from essaim.usecases.services import Services

#: Machines looked at at once.
WIDTH = 16
#: Bytes of a file beyond which no diff is shown, and lines of a diff that are.
_LONGEST_FILE, _LONGEST_DIFF = 1 << 18, 60
_READ_WITHIN = 30.0


def find_drift(
    services: Services, stack: Stack, lab: Path, world: World
) -> dict[tuple[str, str], Drift]:
    """Look into every running machine; by machine and role, what is not as applied.

    Changes nothing.  A machine that cannot be looked at counts as drifted, with the reason.
    """
    looking = _Looking(services, stack, lab, world)
    running = [
        machine
        for machine in stack.machines
        if (seen := world.machines.get(str(machine.name))) and seen.power is Power.ON
    ]
    with ThreadPoolExecutor(WIDTH, thread_name_prefix="essaim-drift") as pool:
        found = pool.map(looking.machine, running)
        return {at: drift for each in found for at, drift in each.items()}


class _Looking:
    """One look at a stack."""

    def __init__(self, services: Services, stack: Stack, lab: Path, world: World) -> None:
        self._remote: Remote = services.remote
        self._stack = stack
        self._world = world
        self._facts = RoleFacts(services, stack, lab)
        driver = services.driver(stack.site)
        self._patience = driver.answers_within() if isinstance(driver, Slow) else ANSWER_WITHIN

    def machine(self, machine: Machine) -> dict[tuple[str, str], Drift]:
        """Look at the roles of a machine that were applied in its present boot."""
        name = str(machine.name)
        boot = self._world.machines[name].boot
        applied = [
            self._stack.roles[role]
            for role in machine.roles
            if (was := self._world.applied.get((name, role))) and was.boot == boot
        ]
        if not applied:
            return {}
        target = self._facts.target(machine)
        try:
            self._remote.reach(target, within=self._patience)
        except EssaimError as error:
            lost = Drift(reason=f"cannot be looked at: {_without_name(error.what, name)}")
            return {(name, role.name): lost for role in applied}
        drifts = {(name, role.name): self._role(machine, target, role) for role in applied}
        return {at: drift for at, drift in drifts.items() if drift}

    def _role(self, machine: Machine, target: Target, role: Role) -> Drift | None:
        if role.ansible:
            return None  # a playbook alone knows what it would change
        try:
            facts = self._facts.of(machine, role)
            reasons, details = self._files(machine, target, role, facts)
            reasons += [
                f"{step} would run again" for step in due_steps(self._remote, target, role, facts)
            ]
            if why := roles.probe(self._remote, target, role, facts, unrecorded):
                reasons.append(f"not ready: {why}")
        except EssaimError as error:
            why = _without_name(error.what, str(machine.name))
            return Drift(reason=f"cannot be looked at: {why}")
        return Drift(reason="; ".join(reasons), detail="".join(details)) if reasons else None

    def _files(
        self, machine: Machine, target: Target, role: Role, facts: Facts
    ) -> tuple[list[str], list[str]]:
        """What differs in the files of a role, in words and as diffs."""
        own = [file for file in role.files if self._writer(machine, file) is role]
        if not own:
            return [], []
        there = look_at_files(self._remote, target, [file.to for file in own])
        reasons, details = [], []
        for file in own:
            body = content(role, file, facts)
            seen, digest = there.get(file.to), hashlib.sha256(body).hexdigest()
            edited = seen is not None and seen.kind == "file" and seen.sha256 != digest
            if edited:
                reasons.append(f"{file.to} was edited")
                details.append(self._diff(target, role, file, facts, body))
            reasons += file_differences(file.to, _expected(role, file), seen, "")
        return reasons, details

    def _writer(self, machine: Machine, file: RoleFile) -> Role:
        """Of several roles that write one file the last wins."""
        carried = [self._stack.roles[name] for name in machine.roles]
        return [role for role in carried if any(other.to == file.to for other in role.files)][-1]

    def _diff(self, target: Target, role: Role, file: RoleFile, facts: Facts, body: bytes) -> str:
        head = f"{target.name}: {file.to}\n"
        if self._is_secret(role, file, facts):
            return f"{head}  (it holds a secret: the difference is not shown)\n"
        limit = str(_LONGEST_FILE)
        result = self._remote.run(target, ["head", "-c", limit, file.to], within=_READ_WITHIN)
        if result.exit_code:
            return f"{head}  (it cannot be read)\n"
        lines = _diff_lines(result.stdout, body.decode(errors="replace"), role)
        return head + mask("".join(f"  {line}\n" for line in lines), facts.secrets())

    def _is_secret(self, role: Role, file: RoleFile, facts: Facts) -> bool:
        """Tell whether a file takes anything from a secret; in doubt, yes."""
        hidden = {name for name, given in facts.needs.items() if given.secret}
        variables = {**role.vars, **self._stack.vars.get(role.name, {})}
        secret = {str(path[0]) for path, _ in references(variables)}
        for name in reads(role, file):
            mapping, _, key = name.partition(".")
            known, kept = (facts.needs, hidden) if mapping == "needs" else (variables, secret)
            if kept and (key in kept or key not in known):
                return True
        return False


def _expected(role: Role, file: RoleFile) -> LockedFile:
    return LockedFile(
        role=role.name, mode=f"{file.mode:o}", owner=file.owner, group=file.group or "", sha256=""
    )


def _diff_lines(there: str, wanted: str, role: Role) -> Iterator[str]:
    """Compare as `diff -u` does: what is there now, and what the role writes."""
    lines = list(
        difflib.unified_diff(
            there.splitlines(), wanted.splitlines(), "there now", f"role {role.name}", lineterm=""
        )
    )
    yield from lines[:_LONGEST_DIFF]
    if len(lines) > _LONGEST_DIFF:
        yield f"… {len(lines) - _LONGEST_DIFF} more lines"


def _without_name(what: str, name: str) -> str:
    """Take a machine's name off a sentence that is said of it anyway."""
    return what.removeprefix(name).lstrip(": ")
