"""What an API is told when it is made, beside the parts it works with."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from essaim.api.limits import Rate
from essaim.model.client_networks import Network, parse_networks


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """Where clients and tunnels find the SSH gateway."""

    host: str = "localhost"
    port: int = 2222
    host_key: str = ""  #: its public key, for clients and agents to pin
    ask_key: Callable[[], str] | None = None  #: gives it, when only the gateway knows it


#: Generous enough for a class behind one address, too slow for guessing passwords.  An address is
#: one of IPv4 or a /64 of IPv6; a name counts together with the address that gave it, so that
#: nobody can keep somebody else out.  Of logins only those that fail count.
RATES: Mapping[str, Rate] = {
    "login address": Rate(60, 60.0),
    "login name": Rate(10, 60.0),
    "claim address": Rate(60, 60.0),
    "signup address": Rate(60, 60.0),
    "signup name": Rate(10, 60.0),
    # Refused ones alone: each may tell that a name is taken.
    "signup refused": Rate(30, 600.0),
    "register address": Rate(600, 60.0),
    "register name": Rate(30, 60.0),
    "challenge address": Rate(600, 60.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an API behaves.  The defaults are for a server of its own."""

    gateway: Gateway = Gateway()
    #: Proxies whose word is taken about where requests come from: one on this computer.
    trusted_proxies: Collection[Network] = parse_networks("127.0.0.1 ::1")
    public_url: str = ""  #: how people reach this API; empty: as the request came
    #: Gives the text served at /agent.py.  Edges do not know each other: who starts both says it.
    agent: Callable[[], str] | None = None
    #: Gives the addresses of gateways that live, for agents to choose from; none: only `gateway`.
    gateways: Callable[[], Sequence[tuple[str, int]]] = tuple
    #: Says whether this process is about to end, so that nobody sends it anything new.
    leaving: Callable[[], bool] = bool
    #: The PEM text served at /ca.pem: the authority that signed the certificate shown to clients.
    authority: str = ""
    #: Also machines that never joined sign with their host key.
    always_signed: bool = False
    together: bool = False  #: tries are counted by all processes, in the database
    rates: Mapping[str, Rate] = field(default_factory=lambda: RATES)
    clock: Callable[[], float] = time.monotonic  #: of the rate limits
    most_bytes: int = 64 * 1024  #: of a request's body
    look_every: float = 1.0  #: seconds between looks at the store, for streams of events
    stream_seconds: float = 3600.0  #: after which a stream ends and the client comes again
