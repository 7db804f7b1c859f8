"""All processes of one control plane that hold a key hold the same: machines know no others.

Each process holds only the keys it needs, and says in the database what their public halves are.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from essaim.model.errors import SetupError
from essaim.remote.keyring import public_half
from essaim.usecases.signing_keys import KINDS, other_signing_key, warn_of_database

if TYPE_CHECKING:
    from pathlib import Path

    from essaim.usecases.services import Services

log = logging.getLogger(__name__)

#: What each key is for.
KEYS = {
    "control": "the key that logs in to nodes to make accounts",
    "gateway": "the key that gateways show",
    "lease": "the key that gateways log in to leases with",
    "user": "the key that logs in to machines of stacks",
}
#: Those that each kind of process holds; an API opens no machine, so it holds no SSH key.
API, CONTROL, GATEWAY = ("access",), ("control", "user", "inner"), ("gateway", "lease", "inner")
#: Whether there are keys for nodes and leases beside the one of machines.
_SEPARATE = "keys.separate"


def fingerprint(public: str) -> str:
    """Give the fingerprint of a public key, as OpenSSH writes it."""
    blob = base64.b64decode(public.split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def same_keys(services: Services, names: Sequence[str] = (*KEYS, *KINDS)) -> None:
    """SetupError when this process has other keys than its control plane.

    The first process of a control plane makes them; none is made where others have some.
    """
    for name in names:
        signing = name in KINDS
        problem = other_signing_key(services, name) if signing else other_key(services, name)
        if problem:
            raise SetupError(problem, hint=_hint(services))
        warning = warn_of_database(services, name) if signing else ""
        if warning:
            log.warning("%s: when no older process runs any more, essaim keys rotate", warning)


def other_key(services: Services, name: str, *, make: bool = True) -> str:
    """Say what is wrong with a key of this process; nothing when it is the right one."""
    ring, about = services.keyring, KEYS[name]
    kept = services.settings.get(f"key.{name}")
    if _held(services, name) is None and (kept or not make):
        seen = f" ({kept})" if kept else ""
        return f"{about} is not in {ring.folder}, and this control plane has one{seen}"
    public = public_half((_held(services, name) or ring.make(name)).read_bytes())
    mine = fingerprint(public)
    kept = kept or services.settings.first(
        f"key.{name}", f"{mine} from {socket.gethostname()}:{ring.folder}"
    )
    # While it is rotated, others may be a moment ahead.
    if kept.split()[0] not in map(fingerprint, ring.public_keys(name)):
        return f"{about} in {ring.folder} is {mine}, but this control plane has {kept}"
    services.settings.first(f"public.{name}", public)
    return ""


def is_elsewhere(services: Services, name: str) -> bool:
    """Say whether only other processes hold a key: they have said its public half."""
    return not _held(services, name) and bool(services.settings.get(f"public.{name}"))


def public_keys(services: Services, name: str) -> list[str]:
    """Give the public halves of a key, two while it is rotated; none when nobody holds it yet."""
    said = services.settings.get(f"public.{name}")
    if said:
        return said.splitlines()
    # Processes of earlier versions do not say them; they share their folder.
    held = _held(services, name)
    return [public_half(held.read_bytes())] if held else []


def _held(services: Services, name: str) -> Path | None:
    """Give the file of a key that is used as this one, if this process holds it."""
    ring = services.keyring
    held = ring.holds(name)
    if held is None and name in ("control", "lease") and not _is_separate(services):
        return ring.holds("user")
    return held


def _is_separate(services: Services) -> bool:
    """Whether nodes and leases have keys of their own, which is decided once.

    Machines that joined before there were any know one key for all, and so do the gateways and
    controllers of that version, which may still run.  A rotation separates them.
    """
    said = services.settings.get(_SEPARATE)
    if said is None:
        said = services.settings.first(_SEPARATE, "no" if services.fleet.list() else "yes")
    return said == "yes"


def forget_keys(services: Services) -> None:
    """Let the next process that starts say which keys are right, because they were changed."""
    for name in (*KEYS, *KINDS):
        services.settings.drop(f"key.{name}")
        services.settings.drop(f"public.{name}")


def _hint(services: Services) -> str:
    return (
        "share the folder of keys with processes of this kind that run already: set ESSAIM_KEYS "
        f"(now {services.keyring.folder}) or ESSAIM_HOME to one volume; if the keys were changed "
        "on purpose: essaim check --new-keys, and let every machine join again"
    )
