"""Makes a server from the settings of a site; loads the library of that kind alone.

InvalidError when the settings do not fit, SetupError when a secret or a package is missing.  What
is made keeps connections open: make one for each site, and close it where it has `close`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from essaim.config.secrets import read_secret
from essaim.model.errors import MissingExtraError

if TYPE_CHECKING:
    from essaim.model.school import Addresses, Desktops, Directory, Names

# ruff: noqa: PLC0415 - a kind's library is loaded when one of that kind is made


def make_names(settings: Mapping[str, Any]) -> Names:
    """Make the DNS server that `dns` of a site says."""
    given = _checked("dns", settings)
    with _installed():
        if given.pop("kind") == "windows":
            from essaim.servers.windows import WindowsDns

            zones, ttl = given.pop("zones"), given.pop("ttl")
            return WindowsDns(_login(given, "dns"), zones, ttl)
        from essaim.servers.dns import Rfc2136, Settings

        return Rfc2136(Settings(**_open(given, f"the DNS key {given['key']}")))


def make_addresses(settings: Mapping[str, Any]) -> Addresses:
    """Make the DHCP server that `dhcp` of a site says."""
    given = _checked("dhcp", settings)
    kind = given.pop("kind")
    with _installed():
        if kind == "windows":
            from essaim.servers.windows import WindowsDhcp

            return WindowsDhcp(_login(given, "dhcp"))
        if kind == "dnsmasq":
            return _dnsmasq(given)
        from essaim.servers.kea import Kea, Settings

        return Kea(Settings(**_open(given, "Kea's database")))


def make_desktops(settings: Mapping[str, Any], plane: str = "") -> Desktops:
    """Make the remote desktop gateway that `desktop` of a site says, for one control plane."""
    given = _checked("desktop", settings)
    given.pop("kind")
    with _installed():
        from essaim.servers.guacamole import Guacamole, Settings

        opened = _open(given, f"{given['user']} at Guacamole")
        return Guacamole(Settings(**opened, plane=plane))


def make_directory(settings: Mapping[str, Any]) -> Directory:
    """Make the directory that `directory` of a site says."""
    given = _checked("directory", settings)
    given.pop("kind")
    with _installed():
        from essaim.servers.ldap import Ldap, Settings

        return Ldap(Settings(**_open(given, f"{given['user']} in the directory")))


def _checked(part: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    from essaim.config.servers import check_server

    return check_server(part, settings).model_dump()


def _open(given: dict[str, Any], what: str) -> dict[str, Any]:
    """The settings with the secret itself in place of where it is."""
    return {**given, "secret": read_secret(given.get("secret"), what)}


def _login(given: dict[str, Any], part: str) -> Any:
    from essaim.servers.windows_shell import Login

    return Login(**_open(given, f"{given['user'] or part} on {given['server']}"))


def _dnsmasq(given: dict[str, Any]) -> Addresses:
    from essaim.servers.dnsmasq import Dnsmasq, Settings
    from essaim.servers.ways import Here, Login, There

    ssh = given.pop("ssh")
    return Dnsmasq(Settings(**given), There(Login(**ssh)) if ssh else Here())


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    """Say which package is missing; a server of another kind does without it."""
    try:
        yield
    except ModuleNotFoundError as exc:
        raise MissingExtraError(
            f"the Python package {exc.name} is not installed", "school"
        ) from exc
