"""A site's settings as this driver uses them.  `config.drivers` has checked them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from essaim.model.stacks import Site

PORTS = "22000-29999"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A site's settings.  An empty `host` means this computer."""

    site: str
    uri: str
    mode: str  #: session or system
    host: str
    user: str
    port: int
    host_key: str
    key: str
    pool: str
    pool_path: str  #: on the server; empty: below the home of the account
    network: str
    accelerator: str
    ports: tuple[int, int]

    @property
    def remote(self) -> bool:
        """Whether the server is another computer, or acts as one."""
        return bool(self.host)


def read(site: Site) -> Settings:
    """Take the settings of a site, and what is usual for those it does not have."""
    its = site.settings
    parts = urlsplit(its["uri"])
    pool = its.get("pool") or {}
    first, last = (its.get("ports") or PORTS).split("-")
    return Settings(
        site=site.name,
        uri=its["uri"],
        mode=parts.path.strip("/"),
        host=parts.hostname or "",
        user=parts.username or "",
        port=parts.port or 0,
        host_key=its.get("host_key") or "",
        key=its.get("key") or "",
        pool=pool.get("name") or "essaim",
        pool_path=pool.get("path") or "",
        network=its.get("network") or "",
        accelerator=its.get("accelerator") or "auto",
        ports=(int(first), int(last)),
    )
