"""What the settings `dns`, `dhcp`, `desktop` and `directory` of a site may be."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from essaim.config.documents import Keys
from essaim.config.paths import make_absolute
from essaim.config.problems import HintedError, Problems
from essaim.model.errors import Problem
from essaim.model.spelling import meant

ALGORITHMS = ("hmac-sha256", "hmac-sha512", "hmac-sha384", "hmac-sha224", "hmac-sha1")
AUTHS = ("negotiate", "kerberos", "ntlm", "credssp", "basic")

_SECRET = "{env: NAME}, or {file: ~/.config/essaim/NAME} with mode 0600"  # noqa: S105 - an example
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9a-f:]+:[0-9a-f:]*")
_ZONE = re.compile(r"([A-Za-z0-9_]([A-Za-z0-9_/-]*[A-Za-z0-9_])?\.)+[A-Za-z][A-Za-z0-9-]*\.?")
_PUBLIC_KEY = re.compile(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/]+=*( .*)?")
_PASSWORD = re.compile(r"[^/]*//[^/@]*:[^/]*@")


def _host(value: Any) -> Any:
    if not isinstance(value, str) or not _HOST.fullmatch(value):
        raise HintedError("must be the name or the address of a server", "such as ns1.example.org")
    return value


def _zones(value: Any) -> Any:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed:
        raise HintedError("must be a list of zones", "[school.example.org, 0.77.10.in-addr.arpa]")
    for zone in listed:
        if not isinstance(zone, str) or not _ZONE.fullmatch(zone):
            raise HintedError(
                f"must be zones, which {zone!r} is not", "such as 0.77.10.in-addr.arpa"
            )
    return listed


def _one_of(words: tuple[str, ...]) -> BeforeValidator:
    def check(value: Any) -> Any:
        if value not in words:
            raise HintedError(f"must be {', '.join(words)}", meant(str(value), words))
        return value

    return BeforeValidator(check)


def _split(value: Any, schemes: tuple[str, ...], example: str) -> SplitResult:
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        fits = parts.scheme in schemes and parts.hostname and (parts.port or 1)
    except ValueError:
        parts, fits = SplitResult("", "", "", "", ""), False
    if not fits:
        begins = " or ".join(f"{scheme}://" for scheme in schemes)
        raise HintedError(f"must begin with {begins} and name a server", f"such as {example}")
    return parts


def _web(value: Any) -> Any:
    parts = _split(value, ("https",), "https://desktops.example.org/guacamole")
    if parts.username or parts.query or parts.fragment:
        raise HintedError("must name a server and a path, nothing else", "user stands beside it")
    return value.rstrip("/")


def _ldap(value: Any) -> Any:
    parts = _split(value, ("ldaps", "ldap"), "ldaps://ldap.example.org")
    if parts.path.strip("/") or parts.query or parts.username:
        raise HintedError("must name a server and a port, nothing else", "base stands beside it")
    return value.rstrip("/")


def _database(value: Any) -> Any:
    example = "mysql://kea@db.example.org/kea"
    parts = _split(value, ("mysql", "mariadb", "postgresql"), example)
    if not parts.username or not parts.path.strip("/") or parts.query:
        raise HintedError("must name an account, a server and a database", f"such as {example}")
    return value


def _subnets(value: Any) -> Any:
    example = "as in Kea's file, such as {1: 10.77.0.0/24}"
    if not isinstance(value, dict):
        raise HintedError("must be a mapping of Kea's subnets", example)
    for number, network in value.items():
        if not str(number).isdigit() or not 0 < int(number) < 1 << 32:
            raise HintedError(f"must have Kea's id before each network, not {number!r}", example)
        try:
            ipaddress.IPv4Network(network)
        except ValueError as exc:
            raise HintedError(f"must have networks, which {network!r} is not", example) from exc
    return value


def _path(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith("/"):
        raise HintedError("must be an absolute path on the server", "such as /etc/dnsmasq.d/hosts")
    return value


def _public_key(value: Any) -> Any:
    if not isinstance(value, str) or not _PUBLIC_KEY.fullmatch(value):
        raise HintedError("must be a public key", "such as ssh-ed25519 AAAA…, on one line")
    return " ".join(value.split()[:2])


def _reference(value: Any) -> Any:
    fits = isinstance(value, dict) and len(value) == 1 and value.keys() <= {"env", "file"}
    if not fits or not all(isinstance(text, str) and text for text in value.values()):
        raise HintedError("must say where the secret is", _SECRET)
    return value


Server = Annotated[str, BeforeValidator(_host)]
Zones = Annotated[list[str], BeforeValidator(_zones)]
Port = Annotated[int, Field(ge=1, le=65535)]
Ttl = Annotated[int, Field(ge=0, le=604800)]
Secret = Annotated[dict[str, str], BeforeValidator(_reference)]
Absolute = Annotated[str, BeforeValidator(_path)]


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str


class Rfc2136Schema(_Schema):
    """A DNS server that takes signed updates."""

    server: Server
    port: Port = 53
    zones: Zones
    key: str
    secret: Secret
    algorithm: Annotated[str, _one_of(ALGORITHMS)] = ALGORITHMS[0]
    ttl: Ttl = 300


class _WindowsSchema(_Schema):
    server: Server
    port: Port = 5986
    user: str = ""
    secret: Secret | None = None
    auth: Annotated[str, _one_of(AUTHS)] = AUTHS[0]
    ca: str = ""


class WindowsDnsSchema(_WindowsSchema):
    """A Windows DNS server."""

    zones: Zones
    ttl: Ttl = 300


class WindowsDhcpSchema(_WindowsSchema):
    """A Windows DHCP server."""


class KeaSchema(_Schema):
    """The database of hosts of a Kea."""

    database: Annotated[str, BeforeValidator(_database)]
    secret: Secret | None = None
    subnets: Annotated[dict[int, str], BeforeValidator(_subnets)] = {}
    ca: str = ""


class LoginSchema(BaseModel):
    """Another computer, over SSH."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: Server
    host_key: Annotated[str, BeforeValidator(_public_key)]
    key: str
    user: str = "root"
    port: Port = 22
    sudo: bool = False


class DnsmasqSchema(_Schema):
    """The folder of hosts of a dnsmasq."""

    folder: Absolute
    pid_file: Absolute = "/run/dnsmasq/dnsmasq.pid"
    ssh: LoginSchema | None = None


class GuacamoleSchema(_Schema):
    """A Guacamole."""

    url: Annotated[str, BeforeValidator(_web)]
    user: str
    secret: Secret
    source: str = ""
    ca: str = ""
    wake: bool = False


class LdapSchema(_Schema):
    """An LDAP directory."""

    url: Annotated[str, BeforeValidator(_ldap)]
    base: str
    user: str = ""
    secret: Secret | None = None
    ca: str = ""
    login: str = ""


#: The kinds of servers that each setting of a site may name.
SERVERS: Mapping[str, Mapping[str, type[_Schema]]] = {
    "dns": {"rfc2136": Rfc2136Schema, "windows": WindowsDnsSchema},
    "dhcp": {"kea": KeaSchema, "dnsmasq": DnsmasqSchema, "windows": WindowsDhcpSchema},
    "desktop": {"guacamole": GuacamoleSchema},
    "directory": {"ldap": LdapSchema},
}


def read_servers(
    values: Mapping[str, Any], problems: Problems, at: Keys = ("site",)
) -> dict[str, dict[str, Any]]:
    """Read the servers a site names; those that do not fit are left out, and problems say why."""
    found = {}
    for part in SERVERS:
        if values.get(part) is not None:
            schema = read_server(part, values[part], problems, (*at, part))
            if schema is not None:
                found[part] = schema.model_dump(exclude_unset=True)
                make_absolute(found[part], problems, (*at, part))
    return found


def read_server(part: str, values: Any, problems: Problems, at: Keys) -> _Schema | None:
    """Read one server; None when its settings do not fit, and problems say why."""
    kinds, where = SERVERS[part], ".".join(at)
    if not isinstance(values, Mapping):
        problems.add(at, f"{where} must be a mapping", f"{{kind: {next(iter(kinds))}, …}}")
        return None
    for key in _bare(values):
        # Neither is it shown: what is said here may end up in a log.
        problems.add((*at, key), f"{where}.{key} holds a secret itself", f"secret: {_SECRET}")
        return None
    kind = str(values.get("kind") or "")
    if kind not in kinds:
        hint = meant(kind, kinds, kind="it may be")
        problems.add((*at, "kind"), f"{where}.kind is {kind or 'missing'}", hint)
        return None
    return problems.validate(kinds[kind], dict(values), at)


def _bare(values: Mapping[str, Any]) -> Iterator[str]:
    """Which settings hold a secret, or an address with a password in it."""
    if isinstance(values.get("secret"), str):
        yield "secret"
    for key in ("url", "database"):
        if isinstance(values.get(key), str) and _PASSWORD.match(values[key]):
            yield key


def check_server(part: str, values: Any) -> _Schema:
    """Read one server on its own.  InvalidError lists everything that does not fit."""
    problems = Problems(lambda _, what, hint: Problem(what, None, hint))
    schema = read_server(part, values, problems, (part,))
    problems.check()
    if schema is None:  # pragma: no cover - then there was a problem
        raise AssertionError(part)
    return schema
