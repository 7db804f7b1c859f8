"""Who asks, and of which control plane: what routes depend on."""

import contextlib
import ipaddress
from collections.abc import AsyncIterator
from typing import Annotated, cast

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool

from essaim.api.limits import Limiter
from essaim.api.options import Options
from essaim.api.password_gate import PasswordGate
from essaim.model.client_networks import client_network
from essaim.model.errors import UnauthorisedError
from essaim.model.fleet import Permission, Role, Seen, User
from essaim.usecases import people
from essaim.usecases.services import Services

LONGEST = 4096
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")

person = HTTPBearer(
    scheme_name="access",
    auto_error=False,
    description="What /api/login returned as `access`, or an API token",
)
node = HTTPBearer(
    scheme_name="node", auto_error=False, description="The `credential` given to an agent"
)


# Coroutines where nothing waits: a thread for each would cost more than it does.
async def the_services(request: Request) -> Services:
    """The parts of this control plane."""
    return cast("Services", request.app.state.services)


async def the_options(request: Request) -> Options:
    """How this API behaves."""
    return cast("Options", request.app.state.options)


async def the_limiter(request: Request) -> Limiter:
    """Who tried how often."""
    return cast("Limiter", request.app.state.limiter)


Plane = Annotated[Services, Depends(the_services)]
Told = Annotated[Options, Depends(the_options)]
Tries = Annotated[Limiter, Depends(the_limiter)]


def _token(shown: HTTPAuthorizationCredentials | None) -> str:
    # ASCII: headers come as Latin-1, and none of our tokens is anything else.
    text = shown.credentials if shown else ""
    if not text or len(text) > LONGEST or not text.isascii():
        raise UnauthorisedError(
            "this needs an Authorization header with a Bearer token", hint="log in first"
        )
    return text


Shown = Annotated[HTTPAuthorizationCredentials | None, Security(person)]


async def the_token(shown: Shown) -> str:
    """What somebody shows; whose it is remains to be seen."""
    return _token(shown)


def the_session(request: Request, services: Plane, shown: Shown) -> people.Session:
    """Who asks, as they are now: a person, or a program that may see or change things."""
    seeing = request.method in ("GET", "HEAD")
    return _authenticated(
        request, services, shown, Permission.READ if seeing else Permission.CHANGE
    )


def the_tenant(request: Request, services: Plane, shown: Shown) -> people.Session:
    """Who asks, as they are now: a person, or a program that may rent."""
    return _authenticated(request, services, shown, Permission.RENT)


def the_person(request: Request, services: Plane, shown: Shown) -> people.Session:
    """Who asks, as they are now: a person, and no program."""
    return _authenticated(request, services, shown, Permission.PERSONAL)


def _authenticated(
    request: Request,
    services: Services,
    shown: HTTPAuthorizationCredentials | None,
    permission: Permission,
) -> people.Session:
    session = people.authenticate(services, _token(shown), permission)
    request.state.user = session.user  # for the audit trail
    return session


async def the_credential(
    shown: Annotated[HTTPAuthorizationCredentials | None, Security(node)],
) -> str:
    """The secret that an agent shows."""
    return _token(shown)


Token = Annotated[str, Depends(the_token)]
Asking = Annotated[people.Session, Depends(the_session)]
Renting = Annotated[people.Session, Depends(the_tenant)]
InPerson = Annotated[people.Session, Depends(the_person)]


def the_administrator(services: Plane, session: Asking) -> people.Session:
    """Who asks for an administrative act: an administrator must have logged in a moment ago.

    Anybody else passes, to be told that it is not for them.
    """
    if session.user.role is Role.ADMIN:
        people.confirm(services, session, None)
    return session


Administering = Annotated[people.Session, Depends(the_administrator)]
Credential = Annotated[str, Depends(the_credential)]


async def the_address(request: Request) -> str:
    """Where a request comes from, as far as the server can tell."""
    return request.client.host if request.client else ""


Address = Annotated[str, Depends(the_address)]


async def the_network(address: Address) -> str:
    """The network that counts as one client: an IPv4 address, a /64 of IPv6."""
    return client_network(address)


async def the_password_gate(request: Request) -> PasswordGate:
    """Whose turn it is to have a password checked."""
    return cast("PasswordGate", request.app.state.password_gate)


ClientNetwork = Annotated[str, Depends(the_network)]
Gate = Annotated[PasswordGate, Depends(the_password_gate)]


async def the_origin(request: Request, address: Address) -> Seen:
    """Where a session is used, for its owner to recognise it."""
    return Seen(address, request.headers.get("user-agent", ""))


Origin = Annotated[Seen, Depends(the_origin)]


class Proof:
    """Counts and bounds password checks with those of the login: nobody guesses elsewhere."""

    def __init__(self, tries: Limiter, gate: PasswordGate, network: str) -> None:
        self._tries = tries
        self._gate = gate
        self._network = network

    @contextlib.asynccontextmanager
    async def __call__(self, session: people.Session, password: str | None) -> AsyncIterator[None]:
        """Count one try and wait for its turn when a password was sent; a right one is no guess."""
        if password is None:
            yield
            return
        name = f"{session.user.name} {self._network}"
        keys = {"login address": self._network, "login name": name}
        await run_in_threadpool(self._tries.take, keys)
        async with self._gate.turn(self._network):
            yield
        await run_in_threadpool(self._tries.give_back, keys)


async def the_proof(tries: Tries, gate: Gate, network: ClientNetwork) -> Proof:
    """What guards the routes that take a password."""
    return Proof(tries, gate, network)


Prove = Annotated[Proof, Depends(the_proof)]


def the_watcher(request: Request, services: Plane, address: Address, shown: Shown) -> User | None:
    """An operator or whoever is on this computer, which is None; others are refused."""
    if shown is None and _is_local(address) and not any(h in request.headers for h in FORWARDED):
        return None
    return people.authenticate(services, _token(shown), Permission.READ).user


Watcher = Annotated[User | None, Depends(the_watcher)]


def _is_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
