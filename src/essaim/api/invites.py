"""Routes for invite codes, for administrators."""

from datetime import datetime
from typing import Annotated, Self

from fastapi import Path
from pydantic import Field

from essaim.api.asked import Asked
from essaim.api.asking import Administering, Asking, Plane
from essaim.api.given import Given, when
from essaim.api.pages import LINK, Paged
from essaim.api.problems import answers
from essaim.api.routes import routes
from essaim.model import invites as model
from essaim.usecases import invites as use
from essaim.usecases.people import PROJECT

router = routes("people")

InviteId = Annotated[
    str,
    Path(description="Which invite", pattern=r"^i-[a-z0-9]{1,32}$", examples=["i-5c1d9e0a77"]),
]


class NewInvite(Asked):
    """How many people may sign up with a code, for how long, and which rights it carries."""

    uses: int = Field(1, ge=1, le=use.MOST_USES, description="How many people may sign up")
    seconds: int = Field(7 * 86400, ge=1, le=use.LONGEST, description="For how long")
    project: str = Field(
        "",
        pattern=f"^({PROJECT.pattern})?$",
        examples=["compilers"],
        description="Which project their accounts belong to; empty for none",
    )
    roster: str = Field(
        "",
        pattern=r"^([a-z][a-z0-9-]{0,39})?$",
        description="Which roster they teach; empty for none",
    )


class Invite(Given):
    """A code with which people may sign up; the code itself is shown once."""

    id: str = Field(examples=["i-5c1d9e0a77"], description="To revoke it by")
    uses: int = Field(description="How many people may still sign up")
    project: str = Field(description="Which project their accounts belong to; empty for none")
    roster: str = Field(description="Which roster they teach; empty for none")
    by: str = Field(examples=["admin"], description="Who made it")
    created_at: datetime | None = Field(description="When it was made")
    expires_at: datetime | None = Field(description="When it ends")

    @classmethod
    def of(cls, invite: model.Invite) -> Self:
        """Show an invite without its code."""
        return cls(
            id=invite.id,
            uses=invite.uses,
            project=invite.project,
            roster=invite.roster,
            by=invite.by,
            created_at=when(invite.created_at),
            expires_at=when(invite.expires_at),
        )


class InviteCode(Given):
    """The code, shown this once."""

    id: str = Field(examples=["i-5c1d9e0a77"], description="To revoke it by")
    code: str = Field(examples=["invite_8fQ…"], description="For `essaim signup --invite`")


@router.post("/invites", status_code=201, responses=answers(401, 403, 404))
def invite(body: NewInvite, services: Plane, session: Administering) -> InviteCode:
    """Make a code with which people sign up, for administrators."""
    kept, code = use.invite(services, session.user, **body.model_dump())
    return InviteCode(id=kept.id, code=code)


@router.get("/invites", responses={200: LINK, **answers(401, 403)})
def invites(services: Plane, session: Asking, page: Paged) -> list[Invite]:
    """List the codes with which somebody may still sign up, for administrators."""
    found = page.of(use.invites(services, session.user), key=lambda each: [each.id])
    return [Invite.of(each) for each in found]


@router.delete("/invites/{invite}", status_code=204, responses=answers(401, 403, 404))
def revoke_invite(invite: InviteId, services: Plane, session: Administering) -> None:
    """Let nobody sign up with a code any more, for administrators; accounts made with it stay."""
    use.revoke_invite(services, session.user, invite)
