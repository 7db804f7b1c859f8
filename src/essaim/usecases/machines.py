"""Reach machines by name: a shell, a command on one or many, their logs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from essaim.model.errors import RejectedError, SetupError, UnknownError
from essaim.model.machines import Dials, Power
from essaim.model.spelling import meant
from essaim.usecases.stacks import stored_stack
from essaim.workflows.tools import address_from_here, machine_target

if TYPE_CHECKING:
    from essaim.model.errors import EssaimError
    from essaim.model.machines import Driver
    from essaim.model.stacks import Machine, Stack
    from essaim.remote.ssh import Result, Target
    from essaim.usecases.services import Services


def find(services: Services, pattern: str) -> tuple[Stack, list[Machine]]:
    """Machines named by `STACK` (all), `STACK/GROUP` (all of it) or `STACK/MACHINE`."""
    name, _, rest = pattern.partition("/")
    stack, _lab = stored_stack(services, name)
    if not rest:
        return stack, list(stack.machines)
    found = [m for m in stack.machines if rest in (m.name.machine, m.group)]
    if not found:
        hint = meant(rest, [m.name.machine for m in stack.machines], kind="there are")
        raise UnknownError(f"no machine {rest} in stack {name}", hint=hint)
    return stack, found


def find_one(services: Services, pattern: str) -> tuple[Stack, Machine]:
    """The one machine that `pattern` names."""
    stack, found = find(services, pattern)
    if len(found) > 1:
        names = ", ".join(str(machine.name) for machine in found[:6])
        raise UnknownError(f"{pattern} names {len(found)} machines", hint=f"choose one: {names}")
    return stack, found[0]


def targets(services: Services, stack: Stack, machines: Sequence[Machine]) -> list[Target]:
    """How to reach these machines."""
    driver = services.driver(stack.site)
    return [machine_target(stack.site, driver, services.keyring, each) for each in machines]


def run(
    services: Services, pattern: str, command: Sequence[str], *, within: float
) -> Iterator[tuple[Target, Result | EssaimError]]:
    """Run a command on every machine the pattern names; yields results as they come."""
    stack, machines = find(services, pattern)
    return services.remote.fan_out(targets(services, stack, machines), command, within=within)


def ssh_command(services: Services, pattern: str, extra: Sequence[str]) -> list[str]:
    """The OpenSSH command line that opens a session, with the machine's host key pinned."""
    stack, machine = find_one(services, pattern)
    driver = services.driver(stack.site)
    known = services.keyring.known_hosts_file([machine.name])
    options = [
        "-F", os.devnull,
        "-i", str(services.keyring.user_key()),
        "-o", "IdentitiesOnly=yes",
        "-o", f"UserKnownHostsFile={known}",
        "-o", "GlobalKnownHostsFile=/dev/null",
        "-o", "StrictHostKeyChecking=yes",
        "-o", f"HostKeyAlias={machine.name.stack}.{machine.name.machine}",
        "-o", "LogLevel=ERROR",
    ]  # fmt: skip
    if isinstance(driver, Dials):
        # OpenSSH would only say that its dialler passed nothing back.
        _must_run(driver, machine)
        proxy = " ".join(_quote(word) for word in driver.proxy_command(machine.name))
        options += ["-o", f"ProxyCommand={proxy}", "-o", "ProxyUseFdpass=yes"]
    return ["ssh", *options, f"root@{address_from_here(stack.site, machine)}", *extra]


def _must_run(driver: Driver, machine: Machine) -> None:
    on = {each.name for each in driver.observe(machine.name.stack) if each.power is Power.ON}
    if machine.name not in on:
        raise RejectedError(
            f"{machine.name} is off",
            hint=f"essaim status {machine.name.stack}, then essaim up STACK",
        )


def _quote(word: str) -> str:
    """Quote for ssh's ProxyCommand, which is a shell line with %-tokens of its own."""
    if "'" in word or "\n" in word:
        raise SetupError(f"ssh cannot be told the path {word!r}", hint="choose another ESSAIM_HOME")
    return "'" + word.replace("%", "%%") + "'"
