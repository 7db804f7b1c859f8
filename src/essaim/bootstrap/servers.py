"""The servers of sites (DNS, DHCP, desktops, the directory), and what rosters need besides."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from essaim.model.machines import Closes

if TYPE_CHECKING:
    from essaim.model.school import Addresses, Desktops, Directory, Names
    from essaim.model.stacks import Site
    from essaim.store.classes import Classes
    from essaim.store.database import Database
    from essaim.store.journal import SqlJournal
    from essaim.store.rosters import Rosters
    from essaim.workflows.schooling import School


class Servers:
    """The part of a control plane that schools need.  Servers are made when first used."""

    def __init__(self, database: Callable[[], Database], journal: Callable[[], SqlJournal]) -> None:
        self._its_database = database
        self._its_journal = journal
        self._servers: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._serving = threading.Lock()

    @functools.cached_property
    def rosters(self) -> Rosters:
        """Rosters and their students."""
        from essaim.store.rosters import Rosters

        return Rosters(self._its_database())

    @functools.cached_property
    def classes(self) -> Classes:
        """Who teaches a roster, and when."""
        from essaim.store.classes import Classes

        return Classes(self._its_database())

    @functools.cached_property
    def school(self) -> School:
        """What the steps of students' machines act through."""
        from essaim.workflows.schooling import School

        return School(
            rosters=self.rosters,
            journal=self._its_journal(),
            names=self.names,
            addresses=self.addresses,
            desktops=self.desktops,
        )

    def names(self, site: Site) -> Names | None:
        """The DNS server of a site; None when it has none."""
        found: Names | None = self._server(site, "dns")
        return found

    def addresses(self, site: Site) -> Addresses | None:
        """The DHCP server of a site; None when it has none."""
        found: Addresses | None = self._server(site, "dhcp")
        return found

    def desktops(self, site: Site) -> Desktops | None:
        """The remote desktop gateway of a site; None when it has none."""
        found: Desktops | None = self._server(site, "desktop")
        return found

    def directory(self, site: Site) -> Directory | None:
        """Where the school of a site keeps its people; None when it does not say."""
        found: Directory | None = self._server(site, "directory")
        return found

    def close_servers(self) -> None:
        """Let go of connections."""
        for _settings, server in self._servers.values():
            if isinstance(server, Closes):
                server.close()

    def _server(self, site: Site, kind: str) -> Any:
        """A server of a site, one for each as long as its settings stay the same."""
        settings = site.settings.get(kind)
        if not settings:
            return None
        with self._serving:
            known = self._servers.get((site.name, kind))
            if known is None or known[0] != settings:
                known = self._servers[site.name, kind] = (settings, _make(kind, settings))
        return known[1]


def _make(kind: str, settings: Mapping[str, Any]) -> Any:
    from essaim.servers import making

    makers = {
        "dns": making.make_names,
        "dhcp": making.make_addresses,
        "desktop": making.make_desktops,
        "directory": making.make_directory,
    }
    return makers[kind](settings)
