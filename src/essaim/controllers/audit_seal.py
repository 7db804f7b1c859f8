"""Chains new entries of the audit trail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim.usecases import audit

if TYPE_CHECKING:
    from essaim.usecases.services import Services

#: Seconds between looks; an entry can be changed unseen until it is sealed.
EVERY = 2.0


class AuditSeal:
    """Seals what was recorded since the last look; any number of processes may."""

    name = "audit-seal"

    def __init__(self, services: Services) -> None:
        self._services = services

    def reconcile(self) -> float:
        """Seal, and say when to look again."""
        audit.seal(self._services)
        return EVERY
