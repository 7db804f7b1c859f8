"""Every controller: what each process of a control plane runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim.controllers.audit_seal import AuditSeal
from essaim.controllers.dispatch import Dispatch, Dispatches
from essaim.controllers.health import Checks, Health
from essaim.controllers.leases import Expiry, Homes, Queue
from essaim.controllers.rollcall import RollCall
from essaim.controllers.schooling import Schooling
from essaim.controllers.upkeep import Upkeep

if TYPE_CHECKING:
    from essaim.controllers.loops import Controller
    from essaim.usecases.services import Services


def controllers(services: Services, *, homes_every: float = 60.0) -> list[Controller]:
    """Make one of each, for one process."""
    made: list[Controller] = [
        Checks(services),
        Health(services, since=services.fleet.now()),
        Expiry(services),
        Queue(services),
        Homes(services, every=homes_every),
        Upkeep(services),
        RollCall(services),
        Schooling(services),
        AuditSeal(services),
    ]
    if isinstance(services.courier, Dispatches):
        made.append(Dispatch(services.courier))
    return made
