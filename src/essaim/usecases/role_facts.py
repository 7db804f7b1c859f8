"""What the roles of a stack are given, read from its machines once each, outside any run."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from essaim.workflows.configuring import facts_of, read_need
from essaim.workflows.tools import machine_target

if TYPE_CHECKING:
    from pathlib import Path

    from essaim.model.roles import Role
    from essaim.model.stacks import Machine, Stack
    from essaim.remote.roles import Facts, Given
    from essaim.remote.ssh import Target
    from essaim.usecases.services import Services


class RoleFacts:
    """Facts of roles on machines.  May be used by many threads at once."""

    def __init__(self, services: Services, stack: Stack, lab: Path) -> None:
        self._services = services
        self._stack = stack
        self._lab = lab
        self._needs: dict[tuple[str, str], Given] = {}
        self._turn = threading.RLock()

    def target(self, machine: Machine) -> Target:
        """How to reach a machine."""
        site = self._stack.site
        return machine_target(site, self._services.driver(site), self._services.keyring, machine)

    def of(self, machine: Machine, role: Role) -> Facts:
        """Everything the role's templates may use; EssaimError when a value cannot be read."""
        needs = {name: self._need(name, provider) for name, provider in role.needs.items()}
        return facts_of(self._stack, self._lab, machine, role, needs)

    def _need(self, name: str, provider: str) -> Given:
        with self._turn:
            if (provider, name) not in self._needs:
                self._needs[provider, name] = read_need(
                    self._stack,
                    name,
                    provider,
                    remote=self._services.remote,
                    target=self.target,
                    own=self.of,
                )
            return self._needs[provider, name]


def unrecorded(**_log: object) -> None:
    """Keep no record: looking leaves no trace in the log."""
