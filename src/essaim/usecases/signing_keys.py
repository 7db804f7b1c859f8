"""The keys that the processes of a control plane sign with: which there are, and their rotation."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from essaim.model.errors import RejectedError, SetupError, UnknownError
from essaim.model.spelling import meant

if TYPE_CHECKING:
    from pathlib import Path

    from essaim.remote.signing_keys import SigningKey, SigningKeys
    from essaim.usecases.services import Services

log = logging.getLogger(__name__)

ACCESS, INNER = "access", "inner"
#: Seconds in which every request that began with the key of the database is over.
NOTICED = 3.0


@dataclass(frozen=True, slots=True)
class Kind:
    """What a key is for, its file, and the setting where an earlier release keeps it."""

    about: str
    file: str
    setting: str


KINDS: Mapping[str, Kind] = {
    ACCESS: Kind("the key that signs access tokens", "access.keys", "access-token-key"),
    INNER: Kind("the key that processes show gateways", "inner.keys", "gateway.inner"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A key as it may be shown: never the secret."""

    kind: str
    kid: str
    state: str  #: current, previous, next, forgotten
    since: float  #: seconds since 1970; 0 when nobody knows
    place: str


def listed(services: Services) -> Iterator[Listed]:
    """List every key of this control plane that this computer has."""
    for name, keys in services.signing_keys.items():
        pair = keys.held()
        if pair is None:
            if services.settings.get(KINDS[name].setting):
                yield _listed(name, keys.signing(), "current", "the database")
            continue
        signing, believed = keys.signing(), keys.believed()
        for key, otherwise in ((pair.current, "next"), (pair.previous, "previous")):
            if key is not None:
                state = "current" if key == signing else otherwise
                yield _listed(name, key, state if key in believed else "forgotten", keys.path)


def _listed(kind: str, key: SigningKey, state: str, place: str | Path) -> Listed:
    return Listed(kind=kind, kid=key.kid, state=state, since=key.since, place=str(place))


def rotate(
    services: Services,
    names: Sequence[str] = (),
    *,
    forget: bool = False,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Put new keys in the place of the current ones, which are believed until their tokens end.

    Of those named, or of all that this computer has.  Not twice within that time: there are never
    more than two.

    Keys of an earlier release leave the database for good; with them the ids of sessions.  A
    rotation that was interrupted there is finished, and no other begun.
    """
    for name in names:
        if name not in KINDS:
            raise UnknownError(f"there is no key {name}", hint=meant(name, KINDS, kind="there are"))
    chosen = names or [name for name in KINDS if not is_elsewhere(services, name)]
    if not chosen:
        raise SetupError("this computer has no key to sign with", hint="run it where the API runs")
    moved = [name for name in chosen if _rotate_one(services, name, forget=forget)]
    if moved:
        wait(NOTICED)
        services.people.hide_sessions(dropping=[KINDS[name].setting for name in moved])


def _rotate_one(services: Services, name: str, *, forget: bool) -> bool:
    """Replace one key; return whether it is, or was, in the database."""
    keys, kind = services.signing_keys[name], KINDS[name]
    problem = other_signing_key(services, name)
    if problem:
        raise SetupError(problem, hint="run this where the keys of the control plane are")
    old = services.settings.get(kind.setting)
    if old is None or not _holds(keys, old):
        if not forget:
            _check_age(keys, kind)
        pair = keys.rotate(forget=forget)
        services.settings.put(f"key.{name}", _mark(pair.current, keys))
    return old is not None


def _check_age(keys: SigningKeys, kind: Kind) -> None:
    """RejectedError when a third key would make tokens worthless that are in use."""
    if len(keys.believed()) > 1:
        raise RejectedError(
            f"{kind.about} was replaced less than {keys.keep / 60:.0f} minutes ago, and what the "
            "one before it signed still counts",
            hint="wait, or refuse it at once: essaim keys rotate --forget-previous",
        )


def _holds(keys: SigningKeys, secret: str) -> bool:
    pair = keys.held()
    before = pair.previous if pair is not None else None
    return before is not None and before.secret.hex() == secret


def is_elsewhere(services: Services, name: str) -> bool:
    """Whether only other processes hold a key: this one finds neither its file nor an old one."""
    settings, kind = services.settings, KINDS[name]
    there = settings.get(f"key.{name}") and not settings.get(kind.setting)
    return services.signing_keys[name].held() is None and bool(there)


def other_signing_key(services: Services, name: str, *, make: bool = True) -> str:
    """Say what is wrong with a key of this process; nothing when it is the right one."""
    keys, kind = services.signing_keys[name], KINDS[name]
    noted = services.settings.get(f"key.{name}")
    if keys.held() is None:
        if services.settings.get(kind.setting):
            return ""
        if noted or not make:
            seen = f", and this control plane has one ({noted})" if noted else ""
            return f"{kind.about} is not in {keys.path}{seen}"
    current = keys.signing()
    noted = noted or services.settings.first(f"key.{name}", _mark(current, keys))
    pair = keys.held()
    mine = [current, *([pair.current] if pair else [])]
    if noted.split()[0] in {key.kid for key in mine}:
        return ""
    return f"{kind.about} in {keys.path} is {current.kid}, but this control plane has {noted}"


def warn_of_database(services: Services, name: str) -> str:
    """Say that a key is where whoever has a copy of the database has it; nothing when it is not."""
    if services.settings.get(KINDS[name].setting) is None:
        return ""
    return f"{KINDS[name].about} is in the database, where every copy of it has it too"


def _mark(key: SigningKey, keys: SigningKeys) -> str:
    return f"{key.kid} from {socket.gethostname()}:{keys.path.parent}"
