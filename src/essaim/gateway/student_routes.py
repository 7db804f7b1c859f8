"""Where the name of a student's machine at the gateway leads: `promo.alice`.

Only its student gets in, with the key the control plane knows of them.  Teachers do not: they
would be in the student's own account.
"""

from __future__ import annotations

import functools
import math
import socket
from typing import TYPE_CHECKING

from essaim.config.rosters import roster_from_json
from essaim.gateway.routes import Route
from essaim.gateway.sentences import RefusedError
from essaim.model.errors import EssaimError, TransientError
from essaim.model.machines import Dials, Power
from essaim.model.names import MachineName
from essaim.plan.rosters import Standing, Student
from essaim.usecases.rosters import machine
from essaim.workflows.tools import address_from_here

if TYPE_CHECKING:
    from essaim.config.rosters import Roster
    from essaim.usecases.services import Services

SSH = 22
#: Seconds for the address of a machine to answer.
WITHIN = 10.0
_NO_ENTRY = (Standing.RETIRED, Standing.WITHOUT)


def student_route(services: Services, roster: str, login: str, *, forwarding: bool) -> Route | None:
    """Where a student's machine is and which key opens it; None when nobody may go there now."""
    student = services.rosters.one(roster, login)
    if student is None or student.standing in _NO_ENTRY or not student.key:
        return None
    owner = services.people.get(student.account) if student.account else None
    if student.account and (owner is None or owner.disabled):
        return None
    body = services.rosters.get(roster)
    if body is None:
        return None
    waits, final = _waits(services, student)
    found = roster_from_json(body)
    address = address_from_here(found.site, machine(found, student.person, student.address))
    return Route(
        account=login,
        keys=(student.key,),
        node="" if waits else student.machine,
        waits=waits,
        final=final,
        address=address,
        port=SSH,
        host_key=student.access.host_key,
        forwarding=forwarding,
        expires_at=math.inf,
        dial=functools.partial(_dial, services, found, student, address),
    )


def _waits(services: Services, student: Student) -> tuple[str, bool]:
    """Why nobody can enter just now, and whether waiting is of no use; nothing when they can."""
    if student.halted:
        return "stopped", True
    if student.access.digest:
        return "", False
    run = services.journal.get(student.run) if student.run else None
    if run is not None and run.state.moving:
        return "preparing", False
    return "no_account", True


def _dial(services: Services, roster: Roster, student: Student, address: str) -> socket.socket:
    """Connect to the machine as its site does; RefusedError when it is off."""
    name = MachineName.parse(student.machine)
    try:
        driver = services.driver(roster.site)
        if isinstance(driver, Dials):
            return driver.dial(name, SSH)
        return socket.create_connection((address, SSH), WITHIN)
    except (EssaimError, OSError) as error:
        if _is_off(services, roster, student):
            raise RefusedError("stopped", lease=f"{roster.name}.{student.login}") from error
        if isinstance(error, OSError):
            why = f"{name} at {address}: {error.strerror or error}"
            raise TransientError(why) from error
        raise


def _is_off(services: Services, roster: Roster, student: Student) -> bool:
    try:
        seen = services.driver(roster.site).observe(roster.name)
    except EssaimError:
        return False
    return any(str(each.name) == student.machine and each.power is Power.OFF for each in seen)
