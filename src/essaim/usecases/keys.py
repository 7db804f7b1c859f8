"""All processes of one control plane have the same keys: machines know no others."""

from __future__ import annotations

import base64
import hashlib
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from essaim.model.errors import SetupError

if TYPE_CHECKING:
    from essaim.usecases.services import Services

#: What each key is for.
KEYS = {"user": "the key that logs in to machines", "gateway": "the key that gateways show"}


def fingerprint(public: str) -> str:
    """Give the fingerprint of a public key, as OpenSSH writes it."""
    blob = base64.b64decode(public.split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def same_keys(services: Services, names: Sequence[str] = tuple(KEYS)) -> None:
    """SetupError when this process has other keys than its control plane.

    The first process of a control plane makes them; none is made where others have some.
    """
    for name in names:
        problem = other_key(services, name)
        if problem:
            raise SetupError(problem, hint=_hint(services))


def other_key(services: Services, name: str, *, make: bool = True) -> str:
    """Say what is wrong with a key of this process; nothing when it is the right one."""
    ring, about = services.keyring, KEYS[name]
    kept = services.settings.get(f"key.{name}")
    if ring.holds(name) is None and (kept or not make):
        seen = f" ({kept})" if kept else ""
        return f"{about} is not in {ring.folder}, and this control plane has one{seen}"
    public = ring.user_public_key() if name == "user" else ring.gateway_public_key()
    mine = fingerprint(public)
    kept = kept or services.settings.first(
        f"key.{name}", f"{mine} from {socket.gethostname()}:{ring.folder}"
    )
    if kept.split()[0] == mine:
        return ""
    return f"{about} in {ring.folder} is {mine}, but this control plane has {kept}"


def forget_keys(services: Services) -> None:
    """Let the next process that starts say which keys are right, because they were changed."""
    for name in KEYS:
        services.settings.drop(f"key.{name}")


def _hint(services: Services) -> str:
    return (
        f"share the folder of keys with the processes that run already: set ESSAIM_KEYS (now "
        f"{services.keyring.folder}) or ESSAIM_HOME to one volume; if the keys were changed on "
        "purpose: essaim check --new-keys, and let every machine join again"
    )
