"""What we answer."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from essaim.api.asked import KEY, LeaseId
from essaim.api.options import Gateway
from essaim.model import fleet
from essaim.model.runs import Run, RunState, StepRecord, StepState
from essaim.usecases import people
from essaim.usecases.leases import LeaseView
from essaim.usecases.runs import RunDetail

LAST = 253_402_300_799_000  #: the end of the year 9999, after which nothing can be written


class Given(BaseModel):
    """Something that we answer."""

    model_config = ConfigDict(extra="forbid")


def when(milliseconds: int | None) -> datetime | None:
    """A time of the database's clock, as it is written down."""
    if not milliseconds:
        return None
    return datetime.fromtimestamp(min(milliseconds, LAST) / 1000, UTC)


class Tokens(Given):
    """What a session is carried on with."""

    access: str = Field(description="Send it as `Authorization: Bearer …`")
    refresh: str = Field(description="Gets the next pair, once")
    expires_in: int = Field(description="Seconds the access token lasts", examples=[900])
    token_type: str = Field(default="Bearer", description="How to send it: always `Bearer`")

    @classmethod
    def of(cls, tokens: people.Tokens) -> Self:
        """Show tokens to whom they belong."""
        return cls(access=tokens.access, refresh=tokens.refresh, expires_in=tokens.expires_in)


class User(Given):
    """A person."""

    id: str = Field(examples=["u-0f3a9c81d2e4"], description="Never changes")
    name: str = Field(examples=["ada"], description="What they log in with")
    role: fleet.Role = Field(description="What they may do: member, operator or admin")
    project: str = Field(description="Whose limits hold for them too; empty for none")
    machines: int = Field(description="At the same time", examples=[4])
    hours: float = Field(description="Machine-hours in any thirty days", examples=[200.0])
    disabled: bool = Field(description="May not log in")
    pending: bool = Field(description="May not log in until an administrator approves the account")

    @classmethod
    def of(cls, user: fleet.User) -> Self:
        """Show a person."""
        return cls(
            id=user.id,
            name=user.name,
            role=user.role,
            project=user.project,
            machines=user.quota.machines,
            hours=user.quota.hours,
            disabled=user.disabled,
            pending=user.pending,
        )


class Project(Given):
    """What the people of a project may have together."""

    name: str = Field(examples=["compilers"], description="As people are assigned to it")
    machines: int = Field(description="At the same time", examples=[40])
    hours: float = Field(description="Machine-hours in any thirty days", examples=[2000.0])

    @classmethod
    def of(cls, project: fleet.Project) -> Self:
        """Show a project."""
        quota = project.quota
        return cls(name=project.name, machines=quota.machines, hours=quota.hours)


class EnrolmentToken(Given):
    """The token, shown this once."""

    token: str = Field(examples=["enrol_8fQ…"], description="For `agent.py join`")


class GatewayAddress(Given):
    """Where the SSH gateway is."""

    host: str = Field(examples=["essaim.example.org"], description="Name or address")
    port: int = Field(examples=[2222], description="Of its SSH server")
    host_key: str = Field(description="To pin", examples=[" ".join(KEY.split()[:2])])

    @classmethod
    def of(cls, gateway: Gateway) -> Self:
        """Say where a gateway is."""
        key = gateway.ask_key() if gateway.ask_key else gateway.host_key
        return cls(host=gateway.host, port=gateway.port, host_key=key)


class Registered(Given):
    """What an agent is told when it joins.  The credential is shown this once."""

    node_id: str = Field(
        examples=["n-5c1d9e0a77"], description="What the node is called from now on"
    )
    credential: str = Field(
        examples=["node_Zt1…"], description="Sent with every heartbeat as a Bearer token"
    )
    server_public_key: str = Field(description="The key the control plane logs in with")
    gateway: GatewayAddress = Field(description="Where the agent opens its tunnel")
    interval: float = Field(description="Seconds between heartbeats", examples=[30.0])


class GatewayPlace(Given):
    """One of the SSH gateways; all show the same host key."""

    host: str = Field(examples=["gateway-2.example.org"], description="Name or address")
    port: int = Field(examples=[2222], description="Of its SSH server")


class Commands(Given):
    """What an agent shall do: nothing so far; and the gateways it may keep its tunnel to."""

    commands: list[str] = Field(default_factory=list, description="None so far")
    gateways: list[GatewayPlace] = Field(
        default_factory=list, description="Where the agent may open its tunnel"
    )


class Node(Given):
    """A machine of the fleet.  Members do not see where it is and who has it."""

    id: str = Field(examples=["n-5c1d9e0a77"], description="Never changes")
    name: str = Field(examples=["pc-12-03"], description="As its agent announced it")
    site: str = Field(description="Where it stands; empty when nobody said")
    cores: int = Field(description="Processors")
    memory: int = Field(description="MiB")
    labels: dict[str, str] = Field(description="What was said about it")
    address: str = Field(description="Where its SSH server answers")
    port: int = Field(description="Of its SSH server")
    host_key: str = Field(description="Pinned when it joined")
    tunnel: bool = Field(description="Reached only through its own connection")
    state: fleet.NodeState = Field(description="Whether it can serve")
    drained: bool = Field(description="Takes no more leases")
    lease: str | None = Field(description="Who holds it now")
    load: float = Field(description="Load average of one minute")
    beat_at: datetime | None = Field(description="Its last heartbeat")
    checked_at: datetime | None = Field(description="When it was last checked")
    failures: int = Field(description="Checks that failed in a row")
    reason: str = Field(description="Why it is lost or quarantined")
    waiting: bool = Field(description="For an administrator to approve it")

    @classmethod
    def of(cls, node: fleet.Node) -> Self:
        """Show a node."""
        values = {name: getattr(node, name) for name in cls.model_fields}
        times = {"beat_at": when(node.beat_at), "checked_at": when(node.checked_at)}
        return cls(**{**values, **times, "labels": dict(node.labels)})


class Wish(Given):
    """What was asked for."""

    count: int = Field(description="Machines")
    cores: int = Field(description="Processors of each, at least")
    memory: int = Field(description="MiB of each, at least")
    labels: dict[str, str] = Field(description="What each must be labelled with")
    site: str = Field(description="Where; anywhere when empty")
    seconds: int = Field(description="For how long")
    priority: int = Field(description="Higher is served earlier")
    home: bool = Field(description="Copies of the home are kept")
    hold: int = Field(description="Seconds it is kept when released as failed")


class Lease(Given):
    """Somebody's right to some machines for a time."""

    id: LeaseId = Field(description="Also the account on its machines")
    user: str = Field(description="Whose, as an id", examples=["u-0f3a9c81d2e4"])
    project: str = Field(description="Of its owner, when it was asked for")
    wish: Wish = Field(description="What was asked for")
    state: fleet.LeaseState = Field(description="Where it is in its life")
    account: str = Field(description="The user on its machines and at the gateway")
    nodes: list[str] = Field(description="Its machines, in order")
    run: str = Field(description="What works on it now", examples=["rent-l-3k9x2m7q"])
    run_address: str | None = Field(
        examples=["/api/runs/rent-l-3k9x2m7q"], description="Where that work is shown"
    )
    asked_at: datetime | None = Field(description="When it was asked for")
    granted_at: datetime | None = Field(description="When it got its machines")
    expires_at: datetime | None = Field(description="When it ends by itself")
    held_at: datetime | None = Field(description="Released as failed, and kept for debugging")
    ended_at: datetime | None = Field(description="When it ended")
    reason: str = Field(description="Why it ended or failed")

    @classmethod
    def of(cls, lease: fleet.Lease) -> Self:
        """Show a lease."""
        return cls(**_lease(lease))


class Access(Given):
    """How to log in."""

    user: str = Field(
        examples=["l-3k9x2m7q"],
        description="Name at the gateway; `.2` after it is the second machine",
    )
    gateway: GatewayAddress = Field(description="Where to connect to")
    command: str = Field(
        examples=["ssh -p 2222 l-3k9x2m7q@essaim.example.org"],
        description="The same, ready to type",
    )


class LeaseDetail(Lease):
    """A lease with its machines, or its place in the queue."""

    machines: list[Node] = Field(description="As far as the caller may see them")
    position: int | None = Field(description="In the queue; 1 is next")
    eta: datetime | None = Field(description="When it will be granted, if anybody can tell")
    access: Access | None = Field(description="Once it can be used")

    @classmethod
    def seen(cls, view: LeaseView, gateway: Gateway) -> Self:
        """Show a lease in full."""
        lease = view.lease
        ready = lease.state in (fleet.LeaseState.ACTIVE, fleet.LeaseState.MIGRATING)
        return cls(
            **_lease(lease),
            machines=[Node.of(node) for node in view.nodes],
            position=view.position,
            eta=when(view.eta),
            access=access_of(lease.account, gateway) if ready else None,
        )


def _lease(lease: fleet.Lease) -> dict[str, Any]:
    wish = lease.wish
    return {
        "id": lease.id,
        "user": lease.user,
        "project": lease.project,
        "wish": Wish(**{name: getattr(wish, name) for name in Wish.model_fields}),
        "state": lease.state,
        "account": lease.account,
        "nodes": list(lease.nodes),
        "run": lease.run,
        "run_address": f"/api/runs/{lease.run}" if lease.run else None,
        "asked_at": when(lease.asked_at),
        "granted_at": when(lease.granted_at),
        "expires_at": when(lease.expires_at),
        "held_at": when(lease.held_at),
        "ended_at": when(lease.ended_at),
        "reason": lease.reason,
    }


def access_of(account: str, gateway: Gateway) -> Access:
    """Say how to log in at the gateway."""
    return Access(
        user=account,
        gateway=GatewayAddress.of(gateway),
        command=f"ssh -p {gateway.port} {account}@{gateway.host}",
    )


class Visit(Given):
    """One connection through the gateway: who, when, how long, how much; not what."""

    id: str = Field(examples=["v-3a0f91c2d4e5b677"], description="Never changes")
    lease: str = Field(description="The lease it was for")
    user: str = Field(description="Whose lease, as an id")
    node: str = Field(description="The machine it led to", examples=["n-5c1d9e0a77"])
    client: str = Field(description="Where it came from", examples=["192.0.2.44"])
    key: str = Field(description="Fingerprint of the key it was made with")
    opened_at: datetime | None = Field(description="When it began")
    closed_at: datetime | None = Field(description="When it ended; null while it is open")
    bytes_in: int = Field(description="From the client, known when it has ended")
    bytes_out: int = Field(description="To the client, known when it has ended")
    refused: str = Field(description="Why it was not let in")

    @classmethod
    def of(cls, visit: fleet.Visit) -> Self:
        """Show a visit."""
        values = {name: getattr(visit, name) for name in cls.model_fields}
        times = {"opened_at": when(visit.opened_at), "closed_at": when(visit.closed_at)}
        return cls(**{**values, **times})


class Event(Given):
    """Something that happened."""

    id: int = Field(description="Grows; send it as Last-Event-ID")
    at: datetime | None = Field(description="When")
    kind: str = Field(examples=["lease.active"])
    text: str = Field(description="In words")
    lease: str = Field(description="About which lease")
    node: str = Field(description="About which node")
    user: str = Field(description="Whose lease, as an id")
    urgent: bool = Field(description="A person should look")

    @classmethod
    def of(cls, event: fleet.Event) -> Self:
        """Show an event."""
        values = {name: getattr(event, name) for name in cls.model_fields}
        return cls(**{**values, "at": when(event.at)})


class Step(Given):
    """One step of a run."""

    name: str = Field(description="Unique within its run")
    state: StepState = Field(description="How far it is")
    attempts: int = Field(description="How often it was tried")
    error: str = Field(description="Why it failed")
    started_at: datetime | None = Field(description="When it was first tried")
    finished_at: datetime | None = Field(description="When it ended")

    @classmethod
    def of(cls, step: StepRecord) -> Self:
        """Show a step; what it returned is for the workflow alone."""
        return cls(
            name=step.name,
            state=step.state,
            attempts=step.attempts,
            error=step.error,
            started_at=when(step.started_at),
            finished_at=when(step.finished_at),
        )


class RunBrief(Given):
    """Work on a lease or a node."""

    id: str = Field(examples=["rent-l-3k9x2m7q"], description="Never changes")
    workflow: str = Field(examples=["rent"], description="Which steps it takes")
    subject: str = Field(description="What it works on")
    state: RunState = Field(description="How far it is")
    undoing: bool = Field(description="It failed and undoes what it did")
    note: str = Field(description="What it is doing or waiting for")
    error: str = Field(description="Why it failed or is stuck")
    created_at: datetime | None = Field(description="When it was asked for")
    finished_at: datetime | None = Field(description="When it ended")

    @classmethod
    def of(cls, run: Run) -> Self:
        """Show a run."""
        values = {name: getattr(run, name) for name in RunBrief.model_fields}
        times = {"created_at": when(run.created_at), "finished_at": when(run.finished_at)}
        return cls(**{**values, **times})


class RunInFull(Given):
    """A run with its steps and the runs it started."""

    run: RunBrief = Field(description="The run itself")
    steps: list[Step] = Field(description="Those it has begun, in order")
    children: list[RunBrief] = Field(description="The runs it started")

    @classmethod
    def of(cls, detail: RunDetail) -> Self:
        """Show a run in full."""
        return cls(
            run=RunBrief.of(detail.run),
            steps=[Step.of(step) for step in detail.steps],
            children=_briefs(detail.children),
        )


def _briefs(runs: Iterable[Run]) -> list[RunBrief]:
    return [RunBrief.of(run) for run in runs]


class Health(Given):
    """Whether this process can serve."""

    status: str = Field(examples=["ok"], description="Always `ok`: anything else is a problem")
