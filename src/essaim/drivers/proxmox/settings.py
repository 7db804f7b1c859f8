"""What a site of this driver is set to, checked by the configuration; secrets are read here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from essaim.config.secrets import read_secret
from essaim.model.errors import InvalidError, Problem
from essaim.model.stacks import Site

_NEEDED = ("url", "secret", "ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh:
    """How the nodes are reached for what the API lacks."""

    key: str
    host_keys: Mapping[str, str]
    user: str = "root"
    addresses: Mapping[str, str] = field(default_factory=dict)  #: where its name is not enough
    port: int = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A site's settings."""

    site: str
    urls: tuple[str, ...]
    token: str = ""
    user: str = ""
    secret: Mapping[str, str] = field(repr=False)  #: where it is found
    ca: str = ""  #: a file, or the certificate itself
    fingerprint: str = ""
    ids: tuple[int, int]
    pool: str = ""
    storage: str = ""
    bridge: str = "vmbr0"
    vlan: int = 0
    nodes: tuple[str, ...] = ()
    static: bool = True  #: machines are told their address; else they ask for it
    gateway: str = ""
    snippets: str = ""
    ssh: Ssh | None = None
    slots: Mapping[str, int] = field(default_factory=dict)

    @property
    def who(self) -> str:
        """The account, for people."""
        return self.token or self.user


def read(site: Site) -> Settings:
    """Take a site's settings; InvalidError when one is missing."""
    its: Mapping[str, Any] = site.settings
    missing = [key for key in _NEEDED if not its.get(key)]
    if missing:
        raise InvalidError([Problem(f"site {site.name}: {key} is missing") for key in missing])
    first, _, last = str(its["ids"]).partition("-")
    ssh = its.get("ssh")
    urls = its["url"]
    return Settings(
        site=site.name,
        urls=(urls,) if isinstance(urls, str) else tuple(urls),
        token=its.get("token") or "",
        user=its.get("user") or "",
        secret=its["secret"],
        ca=its.get("ca") or "",
        fingerprint=its.get("fingerprint") or "",
        ids=(int(first), int(last)),
        pool=its.get("pool") or "",
        storage=its.get("storage") or "",
        bridge=its.get("bridge") or "vmbr0",
        vlan=its.get("vlan") or 0,
        nodes=tuple(its.get("nodes") or ()),
        static=its.get("address", "static") == "static",
        gateway=its.get("gateway") or "",
        snippets=its.get("snippets") or "",
        ssh=Ssh(**ssh) if ssh else None,
        slots=site.slots,
    )


def secret_of(settings: Settings) -> str:
    """Read the account's secret; SetupError when it is not where the site says, or open to all."""
    return read_secret(settings.secret, f"{settings.who} at site {settings.site}")
