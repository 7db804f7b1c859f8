"""Tokens with which programs ask in somebody's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essaim.model.errors import ForbiddenError, UnknownError
from essaim.usecases.credentials import digest, new_token
from essaim.usecases.people import PROGRAM, confirm

if TYPE_CHECKING:
    from essaim.model.fleet import ApiToken, Scope
    from essaim.usecases.people import Session
    from essaim.usecases.services import Services

DAY = 24 * 3600
#: Seconds a token lasts: at least, usually, at most.
SHORTEST, USUAL, LONGEST = 60, 90 * DAY, 365 * DAY


def create_token(
    services: Services,
    by: Session,
    name: str,
    scope: Scope,
    *,
    seconds: int = USUAL,
    current: str | None = None,
) -> tuple[str, ApiToken]:
    """Make a token; return it, once, and what is kept of it.

    For somebody who is there in person, and for what they may do themselves.
    """
    confirm(services, by, current)
    if not scope.within(by.user.role):
        raise ForbiddenError(
            f"only an {scope.needs} may make a token of scope {scope}",
            hint="choose a scope that you have yourself: read or rent",
        )
    token = new_token(PROGRAM)
    made = services.people.tokens.add(by.user.id, digest(token), name, scope, seconds)
    return token, made


def tokens(services: Services, by: Session) -> list[ApiToken]:
    """List one's own tokens that are not over."""
    return services.people.tokens.list(by.user.id)


def revoke_token(services: Services, by: Session, token_id: str) -> None:
    """End one of one's own tokens at once; UnknownError when one has no such token."""
    if not services.people.tokens.revoke(by.user.id, token_id):
        raise UnknownError(f"you have no API token {token_id}", hint="essaim tokens lists them")
