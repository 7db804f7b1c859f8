"""Reach machines by name: a shell, a command on one or many, their logs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from essaim.model.errors import RejectedError, SetupError, UnknownError
from essaim.model.machines import Dials, Power
from essaim.model.spelling import meant
from essaim.usecases.stacks import stored_stack
from essaim.workflows.tools import address_from_here, machine_target

if TYPE_CHECKING:
    from essaim.model.errors import EssaimError
    from essaim.model.machines import Driver
    from essaim.model.names import MachineName
    from essaim.model.stacks import Machine, Stack
    from essaim.remote.input import Input
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
    services: Services,
    pattern: str,
    command: Sequence[str],
    *,
    within: float,
    stdin: Input | None = None,
) -> Iterator[tuple[Target, Result | EssaimError]]:
    """Run a command on every machine the pattern names; yields results as they come.

    One word is a shell command line, several are a program and its arguments.  Each machine gets
    all of `stdin`.
    """
    stack, machines = find(services, pattern)
    found = targets(services, stack, machines)
    return services.remote.fan_out(found, _command(command), within=within, stdin=stdin)


def stream(
    services: Services,
    pattern: str,
    command: Sequence[str],
    *,
    within: float,
    stdin: Input | None,
    write: Callable[[bytes, bool], None],
) -> Result:
    """Run a command on the one machine the pattern names; `write` gets its output as it comes."""
    stack, machine = find_one(services, pattern)
    (target,) = targets(services, stack, [machine])
    return services.remote.run(
        target, _command(command), stdin=stdin or b"", within=within, on_data=write
    )


def _command(words: Sequence[str]) -> Sequence[str] | str:
    return words[0] if len(words) == 1 else words


def ssh_command(services: Services, pattern: str, extra: Sequence[str]) -> list[str]:
    """The OpenSSH command line that opens a session, with the machine's host key pinned.

    Of `extra`, one word is a shell command line, several are a program and its arguments.
    """
    stack, machine = find_one(services, pattern)
    driver = services.driver(stack.site)
    if isinstance(driver, Dials):
        # OpenSSH would only say that its dialler passed nothing back.
        _must_run(driver, machine)
    known = services.keyring.known_hosts_file([machine.name])
    given = _options(services, stack, machine, driver, known)
    host = given.pop("HostName")
    user = given.pop("User")
    options = [word for name, value in given.items() for word in ("-o", f"{name}={value}")]
    line = [extra[0] if len(extra) == 1 else shlex.join(extra)] if extra else []
    return ["ssh", "-F", os.devnull, *options, f"{user}@{host}", *line]


def ssh_options(services: Services, name: str) -> Iterator[tuple[MachineName, dict[str, str]]]:
    """What ssh_config has to say of each machine of a stack, so that plain ssh reaches it."""
    stack, machines = find(services, name)
    if not machines:
        return
    driver = services.driver(stack.site)
    known = services.keyring.known_hosts_file([machine.name for machine in machines])
    for machine in machines:
        yield machine.name, _options(services, stack, machine, driver, known)


def _options(
    services: Services, stack: Stack, machine: Machine, driver: Driver, known: Path
) -> dict[str, str]:
    options = {
        "HostName": address_from_here(stack.site, machine),
        "User": "root",
        "IdentityFile": _path(services.keyring.user_key()),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": _path(known),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "HostKeyAlias": f"{machine.name.stack}.{machine.name.machine}",
        "LogLevel": "ERROR",
    }
    if isinstance(driver, Dials):
        proxy = " ".join(_quote(word) for word in driver.proxy_command(machine.name))
        options |= {"ProxyCommand": proxy, "ProxyUseFdpass": "yes"}
    return options


def _path(path: Path) -> str:
    """A path as ssh reads it: blanks would end it, percent signs mean something."""
    text = str(path.absolute())
    if '"' in text or "\n" in text:
        raise SetupError(f"ssh cannot be told the path {text!r}", hint="choose another ESSAIM_HOME")
    return '"' + text.replace("%", "%%") + '"'


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
