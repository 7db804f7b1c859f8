"""Routes by which machines are let in: tokens, what machines sign, approval."""

from datetime import datetime
from typing import Annotated, Self

from fastapi import Path
from pydantic import Field

from essaim.api.asked import Enrolment, Joining
from essaim.api.asking import Administering, Asking, ClientNetwork, Plane, Tries
from essaim.api.given import EnrolmentToken, Given, Node, when
from essaim.api.nodes import NodeId
from essaim.api.problems import answers
from essaim.api.routes import routes
from essaim.model import fleet
from essaim.usecases import nodes

router = routes("fleet")

EnrolmentId = Annotated[
    str, Path(description="Which enrolment", pattern=r"^[0-9a-f]{12}$", examples=["5c1d9e0a77b2"])
]


class EnrolmentTerms(Given):
    """A token with which machines may join, without the token."""

    id: str = Field(examples=["5c1d9e0a77b2"], description="What it is revoked by")
    uses: int = Field(description="Machines that may still join")
    site: str = Field(description="Where they stand; empty when nobody said")
    labels: dict[str, str] = Field(description="Said of each of them")
    who: str = Field(description="Who made it")
    approve: bool = Field(description="Its machines wait for approval")
    created_at: datetime | None = Field(description="When it was made")
    expires_at: datetime | None = Field(description="When it ends")

    @classmethod
    def of(cls, enrolment: fleet.Enrolment) -> Self:
        """Show an enrolment."""
        values = {name: getattr(enrolment, name) for name in cls.model_fields}
        times = {name: when(values[name]) for name in ("created_at", "expires_at")}
        return cls(**{**values, **times, "labels": dict(enrolment.labels)})


class Challenge(Given):
    """What a machine signs with its host key when it joins."""

    challenge: str = Field(
        examples=["challenge_Zt1…"],
        description="Signed as `ssh-keygen -Y sign -n essaim-register` does; good once",
    )


@router.post("/enrolments", status_code=201, responses=answers(401, 403))
def enrol(body: Enrolment, services: Plane, session: Administering) -> EnrolmentToken:
    """Make a token with which machines join, for administrators."""
    token = nodes.enrol(services, session.user, **body.model_dump())
    return EnrolmentToken(token=token)


@router.get("/enrolments", responses=answers(401, 403))
def list_enrolments(services: Plane, session: Asking) -> list[EnrolmentTerms]:
    """List the tokens with which machines may join, for administrators."""
    return [EnrolmentTerms.of(each) for each in nodes.enrolments(services, session.user)]


@router.delete("/enrolments/{enrolment_id}", status_code=204, responses=answers(401, 403, 404))
def revoke(enrolment_id: EnrolmentId, services: Plane, session: Administering) -> None:
    """Let no machine join with a token any more, for administrators."""
    nodes.revoke(services, session.user, enrolment_id)


@router.post("/workers/challenge", status_code=201, responses=answers(401, 429))
def challenge(body: Joining, services: Plane, tries: Tries, network: ClientNetwork) -> Challenge:
    """Get the text that a machine signs to join."""
    tries.take({"challenge address": network})
    return Challenge(challenge=nodes.challenge(services, body.token))


@router.post("/nodes/{node_id}/approve", responses=answers(401, 403, 404, 409))
def approve(node_id: NodeId, services: Plane, session: Administering) -> Node:
    """Let a machine serve that waits for approval, for administrators."""
    return Node.of(nodes.approve(services, session.user, node_id))
