"""What a site of the driver `libvirt` is set to."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict

from essaim.config.kinds import Kind, Word
from essaim.config.problems import HintedError
from essaim.config.schema import SiteSchema
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from essaim.config.problems import Problems

ACCELERATORS = ("auto", "kvm", "tcg")
_MODES = ("session", "system")
_EXAMPLE = "such as qemu+ssh://you@server.example.org/session or qemu:///session"
#: Words of a libvirt address that leave the way to the server to us.
_QUERY = ("mode", "netcat", "proxy", "socket")
# ssh would take a word that begins with a dash for an option.
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]*")
_KEY_TYPE = re.compile(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+")
_RANGE = re.compile(r"([0-9]{1,5}) *- *([0-9]{1,5})")
_LOWEST_PORT, _HIGHEST_PORT = 1024, 65535


def _uri(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError as exc:
        raise HintedError(f"must be an address ({exc})", _EXAMPLE) from exc
    if parts.scheme not in ("qemu", "qemu+unix", "qemu+ssh"):
        raise HintedError("must begin with qemu+ssh:// or qemu:///", _EXAMPLE)
    if (mode := parts.path.strip("/")) not in _MODES:
        raise HintedError("must end in /session or /system", meant(mode, _MODES) or _EXAMPLE)
    if (parts.scheme == "qemu+ssh") is not bool(parts.hostname):
        raise HintedError("must name a server after qemu+ssh://, and after nothing else", _EXAMPLE)
    _refuse(parts)
    return value


def _refuse(parts: SplitResult) -> None:
    """Refuse what must not stand in an address."""
    if parts.password:
        raise HintedError("must not hold a password", "log in with a key: see the setting key")
    if not all(_PART.fullmatch(part) for part in (parts.hostname, parts.username) if part):
        raise HintedError("must name a server and an account of it", _EXAMPLE)
    for word, _ in parse_qsl(parts.query, keep_blank_values=True):
        if word not in _QUERY:
            raise HintedError(f"must not say ?{word}=", "use key and host_key beside uri")


def _public_key(value: Any) -> Any:
    """Take a public key, and also a whole line of ssh-keyscan; give type and key alone."""
    hint = "such as ssh-ed25519 AAAA…, on one line"
    words = value.split() if isinstance(value, str) else []
    start = next((i for i, word in enumerate(words[:2]) if _KEY_TYPE.fullmatch(word)), None)
    if start is None or len(words) < start + 2:
        raise HintedError("must be a public key", hint)
    kind, body = words[start : start + 2]
    try:
        inner = base64.b64decode(body, validate=True)
    except ValueError as exc:  # also of a letter that is none
        raise HintedError("must be a public key", hint) from exc
    if inner[4 : 4 + len(kind)] != kind.encode():
        raise HintedError(f"must be a public key of type {kind}: this one is cut or mixed up", hint)
    return f"{kind} {body}"


def _path(value: Any) -> Any:
    if isinstance(value, str) and not value.startswith("/"):
        raise HintedError("must be an absolute path on the server", "such as /data/you/essaim")
    return value


def _pool(value: Any) -> Any:
    """A pool by its name alone is one that is there."""
    return {"name": value} if isinstance(value, str) else value


def _accelerator(value: Any) -> Any:
    if value not in ACCELERATORS:
        raise HintedError("must be auto, kvm or tcg", meant(str(value), ACCELERATORS))
    return value


def _ports(value: Any) -> Any:
    found = _RANGE.fullmatch(value.strip()) if isinstance(value, str) else None
    if not found or not _LOWEST_PORT <= int(found[1]) <= int(found[2]) <= _HIGHEST_PORT:
        raise HintedError("must be a range of ports above 1023", "such as 22000-29999")
    return f"{int(found[1])}-{int(found[2])}"


class PoolSchema(BaseModel):
    """Where the disks of machines are kept on the server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Word = "essaim"
    path: Annotated[str, BeforeValidator(_path)] | None = None


class LibvirtSchema(SiteSchema):
    """A site where libvirt runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    uri: Annotated[str, BeforeValidator(_uri)]
    host_key: Annotated[str, BeforeValidator(_public_key)] | None = None
    key: str | None = None
    pool: Annotated[PoolSchema, BeforeValidator(_pool)] | None = None
    network: Word | None = None
    accelerator: Annotated[str, BeforeValidator(_accelerator)] = ACCELERATORS[0]
    ports: Annotated[str, BeforeValidator(_ports)] | None = None


def _check(schema: LibvirtSchema, problems: Problems) -> None:
    """A server elsewhere must be known by its key."""
    parts = urlsplit(schema.uri)
    if schema.host_key or not parts.hostname:
        return
    port = f"-p {parts.port} " if parts.port else ""
    problems.add(
        ("site", "host_key"),
        f"site.host_key is missing: without it anybody could pose as {parts.hostname}",
        f"see it with `ssh-keyscan -t ed25519 {port}{parts.hostname}`, compare it with what "
        "whoever runs the server says, and write it beside uri as host_key: ssh-ed25519 AAAA…",
    )


KIND = Kind(LibvirtSchema, names=False, seeds=True, enclosed=True, check=_check)
