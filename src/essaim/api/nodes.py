"""Routes for the fleet: machines join, beat, and are looked after."""

from typing import Annotated

from fastapi import Depends, Header, Path, Request
from starlette.concurrency import run_in_threadpool

from essaim.api.asked import Announcement, Beat, Drain
from essaim.api.asking import Administering, Asking, ClientNetwork, Credential, Plane, Told, Tries
from essaim.api.given import (
    Commands,
    GatewayAddress,
    GatewayPlace,
    Node,
    Registered,
)
from essaim.api.options import Options
from essaim.api.pages import LINK, Paged
from essaim.api.problems import answers
from essaim.api.routes import routes
from essaim.usecases import nodes
from essaim.usecases.services import Services

router = routes("fleet")
#: Characters of a header; a signature by a large RSA key has some 3000.
LONGEST = 8192

NodeId = Annotated[
    str, Path(description="Which node", pattern=r"^n-[a-z0-9]{1,32}$", examples=["n-5c1d9e0a77"])
]


async def the_proof(
    essaim_challenge: Annotated[
        str, Header(max_length=LONGEST, description="What /api/workers/challenge gave")
    ] = "",
    essaim_signature: Annotated[
        str, Header(max_length=LONGEST, description="Of that, by the host key: SSHSIG in base64")
    ] = "",
    essaim_credential: Annotated[
        str, Header(max_length=LONGEST, description="What it was given when it joined before")
    ] = "",
) -> nodes.Proof:
    """How a machine shows that it has its host key.

    In headers: a process of an earlier release refuses fields that it does not know.
    """
    return nodes.Proof(
        challenge=essaim_challenge, signature=essaim_signature, credential=essaim_credential
    )


Shown = Annotated[nodes.Proof, Depends(the_proof)]


@router.post("/workers/register", status_code=201, responses=answers(401, 429))
def register(
    *,
    body: Announcement,
    services: Plane,
    told: Told,
    tries: Tries,
    network: ClientNetwork,
    request: Request,
    proof: Shown,
) -> Registered:
    """Join the fleet with an enrolment token."""
    tries.take({"register address": network, "register name": f"{body.name} {network}"})
    request.state.object = body.name
    always = told.always_signed
    joined = nodes.register(services, body.token, body.said(), proof, always=always)
    return Registered(
        node_id=joined.node_id,
        credential=joined.credential,
        server_public_key=joined.server_public_key,
        gateway=GatewayAddress.of(told.gateway),
        interval=joined.interval,
    )


# A coroutine: a plain function would be called in one thread and its answer written in another.
@router.post("/workers/heartbeat", responses=answers(401, 409))
async def heartbeat(body: Beat, services: Plane, told: Told, credential: Credential) -> Commands:
    """Say that a machine lives."""
    return await run_in_threadpool(_heard, body, services, told, credential)


def _heard(body: Beat, services: Services, told: Options, credential: str) -> Commands:
    nodes.heartbeat(services, credential, body.said())
    places = [GatewayPlace(host=host, port=port) for host, port in told.gateways()]
    return Commands(gateways=places)


@router.get("/nodes", responses={200: LINK, **answers(401)})
def list_nodes(services: Plane, session: Asking, page: Paged) -> list[Node]:
    """List the fleet by name."""
    found = page.of(nodes.nodes(services, session.user), key=lambda node: [node.name, node.id])
    return [Node.of(node) for node in found]


@router.get("/nodes/{node_id}", responses=answers(401, 404))
def one_node(node_id: NodeId, services: Plane, session: Asking) -> Node:
    """Show one node."""
    return Node.of(nodes.node(services, session.user, node_id))


@router.delete("/nodes/{node_id}", status_code=204, responses=answers(401, 403, 404, 409))
def remove(node_id: NodeId, services: Plane, session: Administering) -> None:
    """Forget a node that has no lease, for administrators; its agent is refused from then on."""
    nodes.remove(services, session.user, node_id)


@router.post("/nodes/{node_id}/drain", responses=answers(401, 403, 404))
def drain(node_id: NodeId, services: Plane, session: Asking, body: Drain | None = None) -> Node:
    """Let a node serve its lease to the end and then no more, or again; for operators."""
    on = body.on if body else True
    return Node.of(nodes.drain(services, session.user, node_id, on))


@router.post("/nodes/{node_id}/readmit", responses=answers(401, 403, 404, 409))
def readmit(node_id: NodeId, services: Plane, session: Asking) -> Node:
    """Have a lost or quarantined node cleaned, so that it may serve again; for operators."""
    return Node.of(nodes.readmit(services, session.user, node_id))
