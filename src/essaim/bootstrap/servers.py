"""The servers of sites: DNS, DHCP, desktops, the directory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from essaim.model.machines import Closes

if TYPE_CHECKING:
    from essaim.model.school import Addresses, Desktops, Directory, Names
    from essaim.model.stacks import Site


class Servers:
    """The servers that sites name, each made when first used; `plane` says which plane's."""

    def __init__(self, plane: Callable[[], str]) -> None:
        self._plane = plane
        self._servers: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._serving = threading.Lock()

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

    def close(self) -> None:
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
                known = self._servers[site.name, kind] = (settings, self._make(kind, settings))
        return known[1]

    def _make(self, kind: str, settings: Mapping[str, Any]) -> Any:
        from essaim.servers import making

        if kind == "desktop":
            return making.make_desktops(settings, self._plane())
        makers = {
            "dns": making.make_names,
            "dhcp": making.make_addresses,
            "directory": making.make_directory,
        }
        return makers[kind](settings)
