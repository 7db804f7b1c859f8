"""Routes for one's own sessions, and for the tokens of one's programs."""

import functools
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from fastapi import Path
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from essaim.api.asked import NewToken
from essaim.api.asking import InPerson, Plane, Prove
from essaim.api.given import LAST, Given, when
from essaim.api.pages import LINK, Paged
from essaim.api.problems import answers
from essaim.api.routes import routes
from essaim.model import fleet
from essaim.usecases import api_tokens, sessions

router = routes("people")

SessionId = Annotated[
    str, Path(description="Which session", pattern=r"^[0-9a-f]{12}$", examples=["0f3a9c81d2e4"])
]
TokenId = Annotated[
    str, Path(description="Which token", pattern=r"^t-[0-9a-f]{12}$", examples=["t-0f3a9c81d2e4"])
]


class LoginSession(Given):
    """Where somebody is logged in."""

    id: str = Field(examples=["0f3a9c81d2e4"], description="To end it by; no token names it")
    created_at: datetime = Field(description="When they logged in")
    used_at: datetime | None = Field(description="When it was last carried on, if it was")
    expires_at: datetime = Field(description="When it ends without use; 90 days after the login")
    address: str = Field(description="From where, as far as the server can tell; may be empty")
    agent: str = Field(description="With which program, as it says itself; may be empty")
    current: bool = Field(description="The one that asks")

    @classmethod
    def of(cls, found: fleet.LoginSession, *, current: bool) -> Self:
        """Show a session to its owner."""
        return cls(
            id=found.id,
            created_at=_moment(found.created_at),
            used_at=when(found.used_at),
            expires_at=_moment(found.expires_at),
            address=found.seen.address,
            agent=found.seen.agent,
            current=current,
        )


class ApiToken(Given):
    """What a program shows instead of a session, without its secret."""

    id: str = Field(examples=["t-0f3a9c81d2e4"], description="To revoke it by")
    name: str = Field(examples=["nightly tests"], description="What it is for")
    scope: fleet.Scope = Field(description="What the program may do")
    created_at: datetime = Field(description="When it was made")
    expires_at: datetime = Field(description="When it ends")
    used_at: datetime | None = Field(description="When it was last used, to five minutes")

    @classmethod
    def of(cls, found: fleet.ApiToken) -> Self:
        """Show a token to its owner."""
        return cls(**_plain(found))


class MadeToken(ApiToken):
    """A token that was just made."""

    token: str = Field(
        examples=["essaim_kq3…"], description="Send it as `Authorization: Bearer …`; shown once"
    )

    @classmethod
    def made(cls, token: str, found: fleet.ApiToken) -> Self:
        """Show a token to its owner, once."""
        return cls(token=token, **_plain(found))


def _plain(found: fleet.ApiToken) -> dict[str, Any]:
    return {
        "id": found.id,
        "name": found.name,
        "scope": found.scope,
        "created_at": _moment(found.created_at),
        "expires_at": _moment(found.expires_at),
        "used_at": when(found.used_at),
    }


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(min(milliseconds, LAST) / 1000, UTC)


@router.get("/sessions", responses={200: LINK, **answers(401, 403)})
def list_sessions(services: Plane, session: InPerson, page: Paged) -> list[LoginSession]:
    """List where one is logged in."""
    found = sessions.sessions(services, session)
    found.sort(key=lambda each: each.id)
    shown = page.of(found, key=lambda each: [each.id])
    return [LoginSession.of(each, current=each.key == session.sid) for each in shown]


@router.delete("/sessions/{session_id}", status_code=204, responses=answers(401, 403, 404))
def end_session(session_id: SessionId, services: Plane, session: InPerson) -> None:
    """End one of one's sessions at once."""
    sessions.end_session(services, session, session_id)


@router.post("/tokens", status_code=201, responses=answers(401, 403, 409, 429))
async def create_token(
    body: NewToken, services: Plane, session: InPerson, prove: Prove
) -> MadeToken:
    """Make an API token for a program; it is shown only now.

    Ten minutes after a login it needs the caller's password: `reauthenticate`.
    """
    create = functools.partial(
        api_tokens.create_token,
        services,
        session,
        body.name,
        body.scope,
        seconds=body.expires_in,
        current=body.current,
    )
    async with prove(session, body.current):
        token, made = await run_in_threadpool(create)
    return MadeToken.made(token, made)


@router.get("/tokens", responses={200: LINK, **answers(401, 403)})
def list_tokens(services: Plane, session: InPerson, page: Paged) -> list[ApiToken]:
    """List one's API tokens."""
    found = sorted(api_tokens.tokens(services, session), key=lambda each: each.id)
    return [ApiToken.of(each) for each in page.of(found, key=lambda each: [each.id])]


@router.delete("/tokens/{token_id}", status_code=204, responses=answers(401, 403, 404))
def revoke_token(token_id: TokenId, services: Plane, session: InPerson) -> None:
    """Revoke one of one's API tokens."""
    api_tokens.revoke_token(services, session, token_id)
