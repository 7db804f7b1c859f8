"""Look at a machine through its serial console, which works when nothing else does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim.model.errors import RejectedError
from essaim.model.machines import Consoles
from essaim.usecases.machines import find_one

if TYPE_CHECKING:
    import socket

    from essaim.model.names import MachineName
    from essaim.usecases.services import Services


def open_console(services: Services, pattern: str) -> tuple[MachineName, socket.socket]:
    """Connect to a machine's console; whoever has the socket has the console."""
    name, driver = _find(services, pattern)
    return name, driver.console(name)


def console_log(services: Services, pattern: str) -> tuple[MachineName, str]:
    """Give what a machine has printed on its console since it was last started."""
    name, driver = _find(services, pattern)
    return name, driver.console_log(name)


def _find(services: Services, pattern: str) -> tuple[MachineName, Consoles]:
    stack, machine = find_one(services, pattern)
    driver = services.driver(stack.site)
    if not isinstance(driver, Consoles):
        raise RejectedError(
            f"{machine.name} has no console: {stack.site.driver} machines have none",
            hint=f"essaim ssh {machine.name} opens a shell; essaim logs {machine.name} shows more",
        )
    return machine.name, driver
