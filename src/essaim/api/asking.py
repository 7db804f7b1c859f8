"""Who asks, and of which control plane: what routes depend on."""

import ipaddress
from typing import Annotated, cast

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from essaim.api.limits import Limiter
from essaim.api.options import Options
from essaim.model.errors import UnauthorisedError
from essaim.model.fleet import User
from essaim.usecases import people
from essaim.usecases.services import Services

LONGEST = 4096
FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")

person = HTTPBearer(
    scheme_name="access", auto_error=False, description="What /api/login returned as `access`"
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


def the_session(services: Plane, shown: Shown) -> people.Session:
    """Who asks, as they are now."""
    return people.authenticate(services, _token(shown))


async def the_credential(
    shown: Annotated[HTTPAuthorizationCredentials | None, Security(node)],
) -> str:
    """The secret that an agent shows."""
    return _token(shown)


Token = Annotated[str, Depends(the_token)]
Asking = Annotated[people.Session, Depends(the_session)]
Credential = Annotated[str, Depends(the_credential)]


async def the_address(request: Request) -> str:
    """Where a request comes from, as far as the server can tell."""
    return request.client.host if request.client else ""


Address = Annotated[str, Depends(the_address)]


def the_watcher(request: Request, services: Plane, address: Address, shown: Shown) -> User | None:
    """An operator or whoever is on this computer, which is None; others are refused."""
    if shown is None and _is_local(address) and not any(h in request.headers for h in FORWARDED):
        return None
    return people.authenticate(services, _token(shown)).user


Watcher = Annotated[User | None, Depends(the_watcher)]


def _is_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
