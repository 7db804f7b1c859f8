"""Exchanges the address of a machine when somebody else was quicker with it."""

from __future__ import annotations

import secrets
import threading
import time
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from essaim.config.rosters import addresses, roster_from_json
from essaim.engine.workflow import Context
from essaim.model.machines import Cards
from essaim.workflows.tools import tools, work

if TYPE_CHECKING:
    from essaim.model.errors import ClashError
    from essaim.model.school import Addresses, Names
    from essaim.model.stacks import Machine
    from essaim.workflows.schooling import School

#: Seconds for which what the servers said serves all who ask: where many clash, many ask at once.
_FRESH = 2.0


class Claims:
    """The addresses that the servers of a site know somebody by, asked for once for all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, tuple[float, frozenset[str]]] = {}

    def get(self, site: str, names: Names | None, dhcp: Addresses | None) -> frozenset[str]:
        """Every address in use, as it was at most a moment ago."""
        with self._lock:
            at, found = self._found.get(site, (float("-inf"), frozenset()))
            if time.monotonic() - at > _FRESH:
                at, found = time.monotonic(), claimed(names, dhcp)
                self._found[site] = (at, found)
            return found


def claimed(names: Names | None, dhcp: Addresses | None) -> frozenset[str]:
    """Every address that DNS or DHCP has, in one question to each."""
    named = names.named().values() if names is not None else ()
    admitted = dhcp.admitted() if dhcp is not None else ()
    return frozenset({*named, *(host.address for host in admitted)})


def move(
    context: Context, its: School, wanted: Machine, tried: set[str], clash: ClashError
) -> None:
    """Give a machine another address of its roster; `tried` are those it cannot have.

    The clash itself when its driver cannot change an address, RejectedError when none is free.
    """
    at = work(context)
    body = its.rosters.get(at.stack.name)
    if body is None or not isinstance(tools(context).driver(at.stack.site), Cards):
        raise clash
    tried.add(wanted.address)
    taken = tried | its.claims.get(
        at.stack.site.name, its.names(at.stack.site), its.addresses(at.stack.site)
    )
    free = [n for n in addresses(roster_from_json(body)) if str(IPv4Address(n)) not in taken]
    # Whoever was quicker goes through the same addresses in their order: any other is better.
    secrets.SystemRandom().shuffle(free)
    address = its.rosters.move(at.stack.site.name, str(wanted.name), free)
    context.note(f"{wanted.address} is somebody else's by now: takes {address}")
