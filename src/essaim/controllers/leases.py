"""Ends leases whose time is over, warns before, grants the queue, copies homes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from essaim.model.errors import EssaimError
from essaim.model.fleet import Lease, LeaseState
from essaim.usecases import leases as leasing

if TYPE_CHECKING:
    from pathlib import Path

    from essaim.usecases.services import Services

#: Seconds before its end that the owner of a lease is told.
WARNING = 600.0
#: Seconds between two looks at the clock and the queue.
PACE = 1.0


class Expiry:
    """Ends what is over, and tells those whose time is nearly over."""

    name = "expiry"

    def __init__(self, services: Services) -> None:
        self._services = services

    def reconcile(self) -> float:
        """End, then warn."""
        leasing.expire(self._services)
        for lease in self._services.leases.warnable(WARNING):
            if self._services.leases.warned(lease.id):
                self._warn(lease)
        return PACE

    def _warn(self, lease: Lease) -> None:
        at = time.strftime("%H:%M", time.localtime((lease.expires_at or 0) / 1000))
        text = f"This lease ends at {at}. Ce bail se termine à {at}. essaim extend {lease.id}"
        lending = self._services.lending
        for node in self._services.fleet.list(ids=lease.nodes):
            try:
                lending.helper.message(lending.target(node), lease.account, text)
            except EssaimError:
                continue  # a node that does not answer is the health controller's business


class Queue:
    """Grants waiting leases as machines come back."""

    name = "queue"

    def __init__(self, services: Services) -> None:
        self._services = services

    def reconcile(self) -> float:
        """Grant what can be granted."""
        leasing.grant_queue(self._services)
        return PACE


class Homes:
    """Copies the homes of active leases, so that a lost machine does not take them along."""

    name = "homes"

    def __init__(self, services: Services, *, every: float = 60.0, most_mib: int = 64) -> None:
        self._services = services
        self._every = every
        self._most = most_mib

    def reconcile(self) -> float:
        """Copy every home once."""
        lending = self._services.lending
        for lease in self._services.leases.list(states=[LeaseState.ACTIVE]):
            for node in self._services.fleet.list(ids=lease.nodes):
                try:
                    data = lending.helper.save(lending.target(node), lease.account, self._most)
                except EssaimError:
                    continue  # the last copy that succeeded is kept
                _write(lending.home(lease, node.id), data)
        return self._every


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    draft.replace(path)
