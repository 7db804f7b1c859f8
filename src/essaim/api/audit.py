"""Routes for administrators: who did what."""

from datetime import datetime
from typing import Annotated, Any, Self

from fastapi import Query
from pydantic import Field

from essaim.api.asking import Asking, Plane
from essaim.api.given import Given, when
from essaim.api.problems import answers
from essaim.api.routes import routes
from essaim.model.audit import Sealed
from essaim.usecases import audit

router = routes("operation")

MOST = 500
LAST = 2**62


class AuditEntry(Given):
    """One act, or an attempt at one."""

    place: int = Field(description="Its number in the trail")
    at: datetime | None = Field(description="When")
    who: str = Field(description="The person's id; empty for strangers, machines, local commands")
    name: str = Field(description="The person's name then, or the name a stranger gave")
    address: str = Field(description="Where from; `local` for a command on the server")
    action: str = Field(description="What was asked", examples=["rent"])
    object: str = Field(description="Of what", examples=["l-3k9x2m7q"])
    outcome: str = Field(description="`done`, `refused` or `failed`", examples=["done"])
    request: str = Field(description="The request's id, as in the header X-Request-ID")
    details: dict[str, Any] = Field(description="More about it")
    hash: str = Field(description="SHA-256 of this entry and the hash before it")

    @classmethod
    def of(cls, sealed: Sealed) -> Self:
        """Show an entry."""
        its = sealed.entry
        return cls(
            place=sealed.place,
            at=when(sealed.at),
            who=its.who,
            name=its.name,
            address=its.address,
            action=its.action,
            object=its.object,
            outcome=its.outcome,
            request=its.request,
            details=its.details,
            hash=sealed.hash,
        )


class AuditVerdict(Given):
    """Whether the trail is whole."""

    entries: int = Field(description="How many were checked")
    head: str = Field(description="Number and hash of the newest entry: note it elsewhere")
    problem: str = Field(description="The first change that was found; empty when there is none")


@router.get("/audit", responses=answers(401, 403))
def audit_entries(
    *,
    services: Plane,
    session: Asking,
    since: Annotated[
        int, Query(ge=0, le=LAST, description="Milliseconds since 1970: nothing older")
    ] = 0,
    who: Annotated[str, Query(max_length=190, description="One person: name or id")] = "",
    after: Annotated[int, Query(ge=0, le=LAST, description="Begin after this place")] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST, description="At most so many")] = 100,
) -> list[AuditEntry]:
    """List who did what, the oldest first, for administrators."""
    found = audit.entries(services, session.user, since=since, who=who, after=after, limit=limit)
    return [AuditEntry.of(each) for each in found]


@router.get("/audit/verify", responses=answers(401, 403))
def verify_audit(services: Plane, session: Asking) -> AuditVerdict:
    """Say whether the trail was changed or cut, for administrators."""
    found = audit.verify(services, session.user)
    return AuditVerdict(entries=found.entries, head=str(found.head), problem=found.problem)
