"""Keep a machine's disk as it is, and go back to it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from essaim.model.errors import EssaimError, RejectedError, UnknownError
from essaim.model.machines import Power, Snapshots
from essaim.usecases.machines import find_one, targets
from essaim.usecases.stacks import give_way

if TYPE_CHECKING:
    from collections.abc import Sequence

    from essaim.model.machines import Snapshot
    from essaim.model.names import MachineName
    from essaim.model.stacks import Machine, Stack
    from essaim.usecases.services import Services

#: Seconds a machine may take to write what it still holds in memory.
SYNC_WITHIN = 30.0

_log = logging.getLogger(__name__)


def make(services: Services, pattern: str, label: str = "") -> tuple[MachineName, str]:
    """Keep a machine's disk under a label, by default the time; returns the machine and the label.

    A machine that runs is first asked to write what it still holds in memory.
    """
    stack, machine, driver = _find(services, pattern)
    label = label or time.strftime("%Y-%m-%d-%H%M%S", time.gmtime())
    if _power(services, stack, machine) is Power.ON:
        _sync(services, stack, machine)
    driver.snapshot(machine.name, label)
    return machine.name, label


def list_all(services: Services, pattern: str) -> tuple[MachineName, Sequence[Snapshot]]:
    """List a machine's snapshots, oldest first."""
    _stack, machine, driver = _find(services, pattern)
    return machine.name, driver.snapshots(machine.name)


def restore(services: Services, pattern: str, label: str) -> tuple[MachineName, str]:
    """Go back to a snapshot; returns the machine, which is off then, and what starts it.

    HeldError when somebody is at work on the stack.
    """
    stack, machine, driver = _find(services, pattern)
    if label not in {one.label for one in driver.snapshots(machine.name)}:
        raise UnknownError(
            f"{machine.name} has no snapshot {label}", hint=f"essaim snapshot list {machine.name}"
        )
    give_way(services, stack.name)
    services.remote.drop(machine.name)
    driver.restore(machine.name, label)
    return machine.name, " ".join(["essaim up", stack.source, *stack.overrides])


def drop(services: Services, pattern: str, label: str) -> MachineName:
    """Forget a snapshot.  Nothing if it is gone."""
    _stack, machine, driver = _find(services, pattern)
    driver.drop_snapshot(machine.name, label)
    return machine.name


def _find(services: Services, pattern: str) -> tuple[Stack, Machine, Snapshots]:
    stack, machine = find_one(services, pattern)
    driver = services.driver(stack.site)
    if not isinstance(driver, Snapshots):
        raise RejectedError(
            f"{machine.name}: {stack.site.driver} machines keep no snapshots",
            hint="use a site whose driver does, such as libvirt",
        )
    return stack, machine, driver


def _power(services: Services, stack: Stack, machine: Machine) -> Power:
    seen = {one.name: one.power for one in services.driver(stack.site).observe(stack.name)}
    if machine.name not in seen:
        raise RejectedError(f"{machine.name} is not there", hint=f"essaim up {stack.source}")
    return seen[machine.name]


def _sync(services: Services, stack: Stack, machine: Machine) -> None:
    """A machine that does not answer is kept as it is, as after a loss of power."""
    (target,) = targets(services, stack, [machine])
    try:
        services.remote.run(target, ["sync"], within=SYNC_WITHIN)
    except EssaimError as error:
        _log.warning("%s did not write its memory to its disk first: %s", machine.name, error.what)
