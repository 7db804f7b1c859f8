"""The way into leased machines: which key, which address, and that it is the right one."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from essaim.cli.session import client_home, only_one, write_private
from essaim.cli.tongue import tell
from essaim.model.errors import EssaimError, RejectedError, SetupError, UnknownError

#: Looked for in ~/.ssh, the best first.
USUAL = ("id_ed25519", "id_ed25519_sk", "id_ecdsa", "id_ecdsa_sk", "id_rsa")
LEASE = re.compile(r"(l-[a-z0-9]{4,24})(?:\.(\d{1,5}))?")
#: No lease lasts longer, so what is remembered of one is forgotten.
FORGOTTEN = 200 * 86400
SSH = 22
#: Seconds a remembered gateway has to accept a connection before the server is asked again.
_LISTENS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How to get into a lease."""

    account: str
    host: str
    port: int
    host_key: str
    identity: str  #: the private key, or the public one of a key an agent holds
    machines: int = 1

    def user(self, number: int = 1) -> str:
        """The name at the gateway of the lease's first machine, or another."""
        return self.account if number == 1 else f"{self.account}.{number}"

    def command(self, number: int = 1, command: list[str] | None = None) -> list[str]:
        """The ssh command for the lease's first machine, or another."""
        words = ["ssh", "-p", str(self.port)]
        if self.identity:
            words += ["-i", self.identity, "-o", "IdentitiesOnly=yes"]
        if self.host_key:
            words += ["-o", f"UserKnownHostsFile={as_value(known_hosts())}"]
            words += ["-o", "StrictHostKeyChecking=yes"]
        words += [f"{self.user(number)}@{self.host}"]
        return [*words, *(["--", command_line(command)] if command else [])]


def command_line(command: Sequence[str]) -> str:
    """The line for a far shell: one word is a line of its own, several are quoted each."""
    return command[0] if len(command) == 1 else shlex.join(command)


def as_value(path: Path) -> str:
    """A path as ssh reads it in an option: blanks would end it, percent signs mean something."""
    text = str(path).replace("%", "%%")
    return f'"{text}"' if " " in text else text


def public_key(asked: str) -> tuple[str, str]:
    """The public key to rent with, and the path `ssh -i` wants for it.

    As asked, else the usual one of ~/.ssh, else one made for this purpose.
    """
    path = Path(asked).expanduser() if asked else _usual()
    if path.suffix != ".pub":
        path = path.with_name(path.name + ".pub")
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UnknownError(
            f"{path} cannot be read: {getattr(error, 'strerror', error)}",
            hint="make a key with ssh-keygen -t ed25519, or name another with --key",
        ) from error
    if "PRIVATE" in text or len(text.splitlines()) != 1:
        # Nobody else's business, not even the server's.
        raise RejectedError(f"{path} is not one public key", hint="name a file that ends in .pub")
    private = path.with_suffix("")
    return text, str((private if private.exists() else path).absolute())


def _usual() -> Path:
    folder = Path.home() / ".ssh"
    for name in USUAL:
        if (folder / f"{name}.pub").exists():
            return folder / f"{name}.pub"
    own = client_home() / "id_ed25519"
    with only_one(client_home() / "key.lock"):
        if not own.with_suffix(".pub").exists():
            _make(own)
            tell("rent.key_made", path=own)
    return own.with_suffix(".pub")


def _make(path: Path) -> None:
    path.unlink(missing_ok=True)  # half of a pair that was never finished
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "essaim", "-f", str(path)]
    try:
        subprocess.run(words, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(
            f"ssh-keygen could not make a key: {error}", hint="apt-get install openssh-client"
        ) from error


def known_hosts() -> Path:
    """Where the gateways' host keys are pinned: our own file, so that ssh's stays as it is."""
    return client_home() / "known_hosts"


def pin(host: str, port: int, host_key: str) -> None:
    """Believe this host key of a gateway, as the server said it, and no other."""
    if not host_key:
        return
    name = host if port == SSH else f"[{host}]:{port}"
    line = f"{name} {' '.join(host_key.split()[:2])}"
    path = known_hosts()
    with only_one(path.with_suffix(".lock")):
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if line in lines:
            return
        others = [each for each in lines if each.split(" ", 1)[0] != name]
        if len(others) != len(lines):
            tell("access.key_changed", host=host)
        write_private(path, "\n".join([*others, line]) + "\n")


def way_in(lease: dict[str, Any], identity: str) -> Way | None:
    """The way into a lease as the server tells it, pinned and remembered; None before it is."""
    access = lease.get("access")
    if not access:
        return None
    way = through(access, identity, machines=max(1, len(lease.get("nodes") or ())))
    remember(lease["id"], way)
    return way


def through(access: dict[str, Any], identity: str, *, machines: int = 1) -> Way:
    """The way through the gateway as the server tells it, with the gateway's host key pinned."""
    gateway = access["gateway"]
    way = Way(
        account=access["user"],
        host=gateway["host"],
        port=int(gateway["port"]),
        host_key=gateway["host_key"],
        identity=identity,
        machines=machines,
    )
    pin(way.host, way.port, way.host_key)
    return way


def remember(lease: str, way: Way) -> None:
    """Keep the way into a lease, so that it can be gone while the server restarts."""
    write_private(_folder() / f"{lease}.json", json.dumps(asdict(way)))
    for old in _folder().glob("l-*.json"):
        if time.time() - old.stat().st_mtime > FORGOTTEN:
            old.unlink(missing_ok=True)
    from essaim.cli.ssh_config import refresh_leases

    refresh_leases()


def remembered_all() -> list[tuple[str, Way]]:
    """All ways into leases that are remembered, the newest first."""
    files = sorted(_folder().glob("l-*.json"), key=lambda path: -path.stat().st_mtime)
    found = [(path.stem, remembered(path.stem)) for path in files]
    return [(lease, way) for lease, way in found if way is not None]


def remembered(lease: str) -> Way | None:
    """The way into a lease that was rented, or looked at, from here."""
    try:
        return Way(**json.loads((_folder() / f"{lease}.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _folder() -> Path:
    folder = client_home() / "leases"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def enter(words: list[str]) -> NoReturn:
    """Become an ssh session."""
    try:
        os.execvp(words[0], words)  # noqa: S606 - an argument list; ssh takes over the terminal
    except FileNotFoundError as error:
        raise SetupError("there is no ssh here", hint="apt-get install openssh-client") from error


def lease_command(name: str, command: list[str] | None = None) -> list[str]:
    """The ssh command for a machine of a lease: `l-3k9x2m7q`, or `l-3k9x2m7q.2`."""
    found = LEASE.fullmatch(name)
    if found is None:
        raise UnknownError(f"{name} is no lease", hint="essaim leases lists yours")
    lease, number = found[1], int(found[2] or 1)
    known = remembered(lease)
    if known is None:
        return _asked(lease).command(number, command)
    if not _listens(known):
        # The gateway may have moved.  If the server does not say so either, ssh says what is wrong.
        with suppress(EssaimError):
            known = _asked(lease, known.identity)
    return known.command(number, command)


def _listens(way: Way) -> bool:
    try:
        socket.create_connection((way.host, way.port), timeout=_LISTENS).close()
    except OSError:
        return False
    return True


def _asked(lease: str, identity: str = "") -> Way:
    from essaim.cli.client import connected

    with connected() as client:
        view = client.get(f"/api/leases/{lease}")
    way = way_in(view, identity or public_key("")[1])
    if way is None:
        raise RejectedError(
            f"{lease} is {view['state']}: there is no machine to enter",
            hint=f"essaim leases {lease}",
        )
    return way
