"""Rotate the SSH keys that nodes and leases know, without any machine joining again.

A successor is made beside the key: from then on whoever logs in offers both.  The machines are
taught both, the successor takes the key's place, the machines forget the old one, and so do we.
Making and replacing files is for a process that holds the key, teaching machines for one that holds
`control`: `rotate` goes as far as this process can and says who goes on.  It may be repeated.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from essaim.model.errors import EssaimError, RejectedError
from essaim.model.fleet import LeaseState
from essaim.usecases.keys import fingerprint, is_elsewhere, public_keys
from essaim.workflows.lending import at_once, give_account

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from essaim.model.fleet import Lease, Node
    from essaim.usecases.services import Services

#: What each key that can be rotated is for, and who knows it.
ROTATED = {
    "control": "controllers log in to nodes with it: every node",
    "lease": "gateways log in to leases with it: the accounts of leases",
}
#: Seconds a node has to answer.
REACH_WITHIN = 10.0
ADMIT_WITHIN = 60.0
#: Leases read at a time.
PAGE = 500
_ADMIT = (
    'umask 077; mkdir -p "$HOME/.ssh" && cat >"$HOME/.ssh/keys.new" && '
    'mv "$HOME/.ssh/keys.new" "$HOME/.ssh/authorized_keys"'
)
#: A successor is made, machines know both, it is the key, machines know only it.
_BEGUN, _TAUGHT, _SWITCHED, _CLEARED = "begun", "taught", "switched", "cleared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """How many machines know the key as it is now, and which do not, with why."""

    reached: int
    missed: tuple[str, ...] = ()
    waits_for: str = ""  #: the key whose holder has to go on; empty when the rotation is over


def rotate(services: Services, name: str, *, force: bool = False) -> Pushed:
    """Put another key in the place of one; RejectedError, and nothing lost, if machines are missed.

    It goes on when it is called again, here or where the rest can be done.  With `force` machines
    that do not answer are left behind: a node must then join again, and a lease end.
    """
    _known(name)
    holds, teaches = (not is_elsewhere(services, key) for key in (name, "control"))
    if not _phase(services, name):
        if not holds:
            return Pushed(reached=0, waits_for=name)
        begin(services, name)
    pushed = Pushed(reached=0)
    while phase := _phase(services, name):
        teaching = phase in (_BEGUN, _SWITCHED)
        if not (teaches if teaching else holds):
            return replace(pushed, waits_for="control" if teaching else name)
        if teaching:
            pushed = _all(services, name, force=force)
            services.settings.put(f"rotation.{name}", _TAUGHT if phase == _BEGUN else _CLEARED)
        elif phase == _TAUGHT:
            _switch(services, name)
        else:
            _finish(services, name)
    return pushed


def begin(services: Services, name: str) -> None:
    """Make the successor of a key, unless there is one, and say both public halves."""
    _known(name)
    if _phase(services, name):
        return
    ring = services.keyring
    ring.begin_rotation(name)
    services.settings.put(f"public.{name}", "\n".join(ring.public_keys(name)))
    services.settings.put(f"rotation.{name}", _BEGUN)


def push(services: Services, name: str) -> Pushed:
    """Let every machine that knows the key know those that count now, and no others."""
    _known(name)
    keys = public_keys(services, name)
    if name == "control":
        missed = at_once(partial(_admit, services, keys), services.fleet.list())
    else:
        missed = [each for some in _accounts(services) for each in at_once(_try, some)]
    return Pushed(reached=missed.count(""), missed=tuple(filter(None, missed)))


def _switch(services: Services, name: str) -> None:
    """Let the successor be the key; the old one opens what does not know it yet."""
    ring = services.keyring
    ring.promote(name)
    public = ring.public_keys(name)[0]
    said = f"{fingerprint(public)} from {socket.gethostname()}:{ring.folder}"
    services.settings.put(f"key.{name}", said)
    services.settings.put(f"public.{name}", public)
    services.settings.put(f"rotation.{name}", _SWITCHED)


def _finish(services: Services, name: str) -> None:
    """Forget the old key.  Students' machines know it until their roster has been applied."""
    services.keyring.end_rotation(name)
    services.settings.drop(f"rotation.{name}")


def _phase(services: Services, name: str) -> str:
    return services.settings.get(f"rotation.{name}") or ""


def _known(name: str) -> None:
    if name not in ROTATED:
        raise RejectedError(
            f"the key {name} cannot be rotated", hint=f"there are {', '.join(ROTATED)}"
        )


def _all(services: Services, name: str, *, force: bool) -> Pushed:
    pushed = push(services, name)
    if pushed.missed and not force:
        some = "; ".join(pushed.missed[:5])
        raise RejectedError(
            f"{len(pushed.missed)} machines do not know the key {name} as it is now: {some}",
            hint="mend or remove them (essaim nodes remove), then rotate again: it goes on",
        )
    return pushed


def _admit(services: Services, keys: Sequence[str], node: Node) -> str:
    """Let the service account of a node be entered with these keys; say what went wrong."""
    target, body = services.lending.target(node), "".join(f"{key}\n" for key in keys)
    try:
        # A connection that was made with the key that goes would prove nothing.
        services.remote.drop(target.name)
        services.remote.reach(target, within=REACH_WITHIN)
        done = services.remote.run(target, _ADMIT, stdin=body.encode(), within=ADMIT_WITHIN)
    except EssaimError as error:
        return f"{node.name}: {error.what}"
    return f"{node.name}: {done.output.strip()}" if done.exit_code else ""


@dataclass(frozen=True, slots=True)
class _Account:
    """An account of a lease on a node."""

    make: Callable[[Lease, Node], None]
    lease: Lease
    node: Node


def _accounts(services: Services) -> list[list[_Account]]:
    """List the accounts that leases have now, some at a time."""
    make = partial(give_account, services.lending)
    states = [state for state in LeaseState if state.served]
    found: list[list[_Account]] = []
    after: tuple[int, str] | None = None
    while page := services.leases.list(states=states, after=after, limit=PAGE):
        after = (page[-1].asked_at, page[-1].id)
        wanted = {key for lease in page for key in lease.nodes}
        nodes = {node.id: node for node in services.fleet.list(ids=wanted)} if wanted else {}
        found.append(
            [
                _Account(make, lease, nodes[key])
                for lease in page
                for key in lease.nodes
                if key in nodes and nodes[key].lease == lease.id
            ]
        )
    return found


def _try(account: _Account) -> str:
    try:
        account.make(account.lease, account.node)
    except EssaimError as error:
        return f"{account.node.name}: {error.what}"
    return ""
