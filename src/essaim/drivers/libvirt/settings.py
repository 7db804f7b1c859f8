"""What a site of this driver is set to, checked: `read` names every setting that is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from essaim.model.errors import InvalidError, Problem
from essaim.model.spelling import meant
from essaim.model.stacks import Site

ACCELERATORS = ("auto", "kvm", "tcg")
PORTS = (22000, 29999)
_KNOWN = ("accelerator", "host_key", "key", "network", "pool", "ports", "uri")
_USUAL_POOL = "essaim"
#: Words of a libvirt address that leave the way to the server to us.
_QUERY = ("mode", "netcat", "proxy", "socket")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_HOST_KEY = re.compile(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/]+=*( .*)?")
_LOWEST_PORT, _HIGHEST_PORT = 1024, 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A site's settings.  An empty `host` means this computer."""

    site: str
    uri: str  #: for libvirt, without the words that say how to get there
    mode: str  #: session or system
    host: str = ""
    user: str = ""
    port: int = 0
    host_key: str = ""
    key: str = ""
    pool: str = _USUAL_POOL
    pool_path: str = ""  #: on the server; empty: below the home of the account
    network: str = ""
    accelerator: str = "auto"
    ports: tuple[int, int] = PORTS

    @property
    def remote(self) -> bool:
        """Whether the server is another computer, or acts as one."""
        return bool(self.host)


class _Reader:
    """Takes settings one by one and keeps what is wrong with them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.problems: list[Problem] = []

    def wrong(self, key: str, what: str, hint: str = "") -> None:
        self.problems.append(Problem(f"site {self._site.name}: {key}: {what}", hint=hint))

    def text(self, key: str) -> str:
        value = self._site.settings.get(key)
        if value is None or isinstance(value, str):
            return (value or "").strip()
        self.wrong(key, f"{value!r} is not a text")
        return ""

    def word(self, key: str, value: object) -> str:
        if isinstance(value, str) and _WORD.fullmatch(value):
            return value
        self.wrong(key, f"{value!r} is not a name", "letters, digits, dots and dashes")
        return ""


def read(site: Site) -> Settings:
    """Check a site's settings; InvalidError lists all that is wrong with them."""
    reader = _Reader(site)
    for key in sorted(set(site.settings) - set(_KNOWN)):
        reader.wrong(key, "is no setting of a libvirt site", meant(key, _KNOWN, kind="there are"))
    where = _uri(reader)
    pool, pool_path = _pool(reader, site.settings.get("pool"))
    network = reader.text("network")
    found = Settings(
        site=site.name,
        **where,
        host_key=_host_key(reader, where),
        key=reader.text("key"),
        pool=pool,
        pool_path=pool_path,
        network=reader.word("network", network) if network else "",
        accelerator=_accelerator(reader),
        ports=_ports(reader, site.settings.get("ports")),
    )
    if reader.problems:
        raise InvalidError(reader.problems)
    return found


def _uri(reader: _Reader) -> dict[str, Any]:
    text = reader.text("uri")
    example = "such as qemu+ssh://you@server.example.org/session or qemu:///session"
    nothing = {"uri": "", "mode": ""}
    try:
        parts = urlsplit(text)
        port = parts.port or 0
    except ValueError as error:
        reader.wrong("uri", f"{text} is not an address: {error}", example)
        return nothing
    mode = parts.path.strip("/")
    if parts.scheme not in ("qemu", "qemu+unix", "qemu+ssh") or mode not in ("session", "system"):
        reader.wrong("uri", f"{text!r} is no address of a server for us", example)
        return nothing
    if (parts.scheme == "qemu+ssh") is not bool(parts.hostname):
        reader.wrong("uri", f"{text}: only qemu+ssh takes the name of a server", example)
        return nothing
    if _unfit(reader, parts):
        return nothing
    query = urlencode([pair for pair in parse_qsl(parts.query) if pair[0] in _QUERY])
    return {
        # Put together by hand: the library would drop the slashes of an address without a server.
        "uri": f"{parts.scheme}://{parts.netloc}/{mode}" + (f"?{query}" if query else ""),
        "mode": mode,
        "host": parts.hostname or "",
        "user": parts.username or "",
        "port": port,
    }


def _unfit(reader: _Reader, parts: SplitResult) -> bool:
    """Whether the address holds what must not be there."""
    before = len(reader.problems)
    if parts.password:
        reader.wrong("uri", "holds a password", "log in with a key: see the setting `key`")
    for word, _ in parse_qsl(parts.query):
        if word not in _QUERY:
            reader.wrong("uri", f"?{word}= is not for you to say", "use `key` and `host_key`")
    for part in (parts.hostname, parts.username):
        # ssh would take a word that begins with a dash for an option.
        if part and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]*", part):
            reader.wrong("uri", f"{part!r} cannot name a server or an account")
    return len(reader.problems) > before


def _host_key(reader: _Reader, where: Mapping[str, Any]) -> str:
    text = reader.text("host_key")
    host, port = where.get("host", ""), where.get("port", 0)
    if host and not text:
        command = f"ssh-keyscan -t ed25519 {f'-p {port} ' if port else ''}{host}"
        reader.wrong(
            "host_key",
            f"is missing: without it anybody could pose as {host}",
            f"ask whoever runs the server for it, or see it with `{command}`, and write what "
            "follows the name there as `host_key: ssh-ed25519 AAAA…` beside `uri`",
        )
    elif text and not _HOST_KEY.fullmatch(text):
        reader.wrong("host_key", "is not a public key", "such as ssh-ed25519 AAAA…, on one line")
    return text


def _pool(reader: _Reader, value: object) -> tuple[str, str]:
    if value is None:
        return _USUAL_POOL, ""
    if isinstance(value, str):
        return reader.word("pool", value), ""
    if not isinstance(value, Mapping) or set(value) - {"name", "path"}:
        reader.wrong("pool", f"{value!r} is neither a name nor {{name: …, path: …}}")
        return _USUAL_POOL, ""
    path = value.get("path") or ""
    if not isinstance(path, str) or (path and not path.startswith("/")):
        reader.wrong("pool.path", f"{path!r} is not an absolute path on the server")
        path = ""
    return reader.word("pool.name", value.get("name") or _USUAL_POOL), path


def _accelerator(reader: _Reader) -> str:
    text = reader.text("accelerator") or ACCELERATORS[0]
    if text not in ACCELERATORS:
        reader.wrong("accelerator", f"{text} is none", meant(text, ACCELERATORS, kind="there are"))
    return text


def _ports(reader: _Reader, value: object) -> tuple[int, int]:
    if value is None:
        return PORTS
    if isinstance(value, str) and (found := re.fullmatch(r"(\d+) *- *(\d+)", value.strip())):
        first, last = int(found[1]), int(found[2])
        if _LOWEST_PORT <= first <= last <= _HIGHEST_PORT:
            return first, last
    reader.wrong("ports", f"{value!r} is no range of ports", "such as 22000-29999, above 1023")
    return PORTS
