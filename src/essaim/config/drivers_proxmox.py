"""What a site of the driver `proxmox` is set to."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from essaim.config.kinds import Kind, Word
from essaim.config.problems import HintedError
from essaim.config.schema import SiteSchema
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from collections.abc import Mapping

    from essaim.config.problems import Problems

_URL = "such as https://pve1.example.org:8006"
_TOKEN = re.compile(r"[^@!\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+![A-Za-z][A-Za-z0-9.\-_]+")
_USER = re.compile(r"[^@!\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_RANGE = re.compile(r"([0-9]{3,9}) *- *([0-9]{3,9})")
_LOWEST_ID, _MOST_IDS = 100, 500_000
_MODES = ("static", "dhcp")
_SECRET = "secret: {env: PVE_TOKEN}, or {file: ~/.config/essaim/pve.token} with mode 0600"  # noqa: S105 - an example


def _url(value: Any) -> Any:
    urls = [value] if isinstance(value, str) else value
    if not isinstance(urls, list) or not urls:
        raise HintedError("must be an address, or a list of them", _URL)
    for url in urls:
        try:
            parts = urlsplit(url if isinstance(url, str) else "")
            if parts.scheme != "https" or not parts.hostname or parts.port == 0:
                raise ValueError(url)  # noqa: TRY301 - as urlsplit says of a port that is none
        except ValueError as error:
            raise HintedError("must begin with https:// and name a server", _URL) from error
        if parts.username or parts.password or parts.path.strip("/") or parts.query:
            raise HintedError("must name a server and a port, nothing else", _URL)
    return [url.rstrip("/") for url in urls]


def _token(value: Any) -> Any:
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise HintedError("must be USER@REALM!NAME", "its value belongs into secret")
    return value


def _user(value: Any) -> Any:
    if not isinstance(value, str) or not _USER.fullmatch(value):
        raise HintedError("must be USER@REALM", "such as essaim@pve")
    return value


def _fingerprint(value: Any) -> Any:
    digits = str(value).replace(":", "").lower()
    if not _FINGERPRINT.fullmatch(digits):
        raise HintedError(
            "must be the SHA-256 of the certificate",
            "on a node: openssl x509 -noout -fingerprint -sha256 -in /etc/pve/local/pve-ssl.pem",
        )
    return digits


def _ids(value: Any) -> Any:
    found = _RANGE.fullmatch(value.strip()) if isinstance(value, str) else None
    if not found or not _LOWEST_ID <= int(found[1]) <= int(found[2]):
        raise HintedError("must be a range of VMIDs from 100 on", "such as 50000-59999")
    if int(found[2]) - int(found[1]) >= _MOST_IDS:
        raise HintedError(f"must be a range of at most {_MOST_IDS} VMIDs", "such as 50000-59999")
    return f"{int(found[1])}-{int(found[2])}"


def _mode(value: Any) -> Any:
    if value not in _MODES:
        raise HintedError("must be static or dhcp", meant(str(value), _MODES))
    return value


def _address(value: Any) -> Any:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError as exc:
        raise HintedError("must be an address", "such as 10.77.0.254") from exc


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SecretSchema(_Schema):
    """Where a secret is found when it is needed."""

    env: str | None = None
    file: str | None = None


class SshSchema(_Schema):
    """How the nodes are reached for what the API lacks."""

    user: Word = "root"
    key: str
    host_keys: dict[str, str]
    addresses: Annotated[dict[str, str], Field(default_factory=dict)]
    port: Annotated[int, Field(ge=1, le=65535)] = 22


class ProxmoxSchema(SiteSchema):
    """A site where Proxmox VE runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[list[str], BeforeValidator(_url)]
    token: Annotated[str, BeforeValidator(_token)] | None = None
    user: Annotated[str, BeforeValidator(_user)] | None = None
    secret: SecretSchema
    ca: str | None = None
    fingerprint: Annotated[str, BeforeValidator(_fingerprint)] | None = None
    ids: Annotated[str, BeforeValidator(_ids)]
    pool: Word | None = None
    storage: Word | None = None
    bridge: Word = "vmbr0"
    vlan: Annotated[int, Field(ge=1, le=4094)] | None = None
    nodes: Annotated[list[Word], Field(default_factory=list)]
    address: Annotated[str, BeforeValidator(_mode)] = _MODES[0]
    gateway: Annotated[str, BeforeValidator(_address)] | None = None
    snippets: Word | None = None
    ssh: SshSchema | None = None


def _showable(values: Mapping[str, Any], problems: Problems) -> bool:
    """Whether no secret stands among the values: one that does is not shown."""
    if isinstance(values.get("secret"), str):
        problems.add(("site", "secret"), "site.secret holds the secret itself", _SECRET)
        return False
    return True


def _check(schema: ProxmoxSchema, problems: Problems) -> None:
    """Note what does not fit together."""
    if bool(schema.token) is bool(schema.user):
        what = "says both token and user" if schema.token else "says neither token nor user"
        problems.add(("site",), f"site {what}", "token: USER@REALM!NAME is the better one")
    if bool(schema.ca) is bool(schema.fingerprint):
        what = "both ca and fingerprint" if schema.ca else "neither ca nor fingerprint"
        hint = "ca: a copy of /etc/pve/pve-root-ca.pem of any node"
        problems.add(("site",), f"site says {what}: the server must be known", hint)
    if bool(schema.secret.env) is bool(schema.secret.file):
        problems.add(("site", "secret"), "site.secret must say env or file", _SECRET)


KIND = Kind(
    ProxmoxSchema,
    names=False,
    seeds=False,
    stocked=True,
    bridged=True,
    showable=_showable,
    check=_check,
)
