"""Rows become values here, and nowhere else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from essaim.model.fleet import (
    Enrolment,
    Event,
    Lease,
    LeaseState,
    Node,
    NodeState,
    Project,
    Quota,
    Role,
    User,
    Visit,
    Wish,
)
from essaim.model.runs import Run, RunState, StepRecord, StepState

if TYPE_CHECKING:
    from sqlalchemy import Row


def to_run(row: Row[Any]) -> Run:
    """Make a value of a row of `run`."""
    return Run(
        id=row.id,
        workflow=row.workflow,
        subject=row.subject,
        input=json.loads(row.input),
        state=RunState(row.state),
        undoing=bool(row.undoing),
        parent=row.parent,
        who=row.who,
        note=row.note,
        error=row.error,
        owner=row.owner,
        epoch=row.epoch,
        site=row.site,
        created_at=row.created_at,
        wake_at=row.due_at or 0,
        finished_at=row.finished_at,
    )


def to_step(row: Row[Any]) -> StepRecord:
    """Make a value of a row of `step`."""
    return StepRecord(
        run=row.run,
        name=row.name,
        state=StepState(row.state),
        output=None if row.output is None else json.loads(row.output),
        attempts=row.attempts,
        error=row.error,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def to_user(row: Row[Any]) -> User:
    """Make a value of a row of `person`."""
    return User(
        id=row.id,
        name=row.name,
        role=Role(row.role),
        project=row.project,
        quota=Quota(machines=row.machines, hours=row.hours),
        disabled=bool(row.disabled),
        pending=bool(row.pending),
    )


def to_project(row: Row[Any]) -> Project:
    """Make a value of a row of `project`."""
    return Project(name=row.name, quota=Quota(machines=row.machines, hours=row.hours))


def to_node(row: Row[Any]) -> Node:
    """Make a value of a row of `node` joined with its `pulse`."""
    return Node(
        id=row.id,
        name=row.name,
        site=row.site,
        cores=row.cores,
        memory=row.memory,
        labels=_labels(row.labels),
        address=row.address,
        port=row.port,
        host_key=row.host_key,
        tunnel=bool(row.tunnel),
        state=NodeState(row.state),
        drained=bool(row.drained),
        lease=row.lease,
        load=row.load,
        beat_at=row.beat_at,
        checked_at=row.checked_at,
        failures=row.failures,
        reason=row.reason,
        waiting=bool(row.waiting),
        read_at=row.read_at,
    )


def to_enrolment(row: Row[Any]) -> Enrolment:
    """Make a value of a row of `enrolment`."""
    return Enrolment(
        id=row.digest[: Enrolment.ID_LENGTH],
        uses=row.uses,
        site=row.site,
        labels=_labels(row.labels),
        who=row.who,
        approve=bool(row.approve),
        created_at=row.created_at,
        expires_at=row.expires_at,
    )


def to_lease(row: Row[Any]) -> Lease:
    """Make a value of a row of `lease`."""
    return Lease(
        id=row.id,
        user=row.person,
        project=row.project,
        wish=Wish(
            count=row.machines,
            cores=row.cores,
            memory=row.memory,
            labels=_labels(row.labels),
            site=row.site,
            seconds=row.seconds,
            priority=row.priority,
            home=bool(row.home),
            hold=row.hold,
        ),
        public_key=row.public_key,
        state=LeaseState(row.state),
        account=row.id,
        nodes=tuple(json.loads(row.nodes)),
        run=row.run,
        asked_at=row.asked_at,
        granted_at=row.granted_at,
        expires_at=row.expires_at,
        held_at=row.held_at,
        ended_at=row.ended_at,
        reason=row.reason,
    )


def from_lease(made: Lease) -> dict[str, Any]:
    """Make a row of `lease`, all but what is no part of the value."""
    wish = made.wish
    return {
        "id": made.id,
        "person": made.user,
        "project": made.project,
        "machines": wish.count,
        "cores": wish.cores,
        "memory": wish.memory,
        "labels": json.dumps(dict(wish.labels), sort_keys=True),
        "site": wish.site,
        "seconds": wish.seconds,
        "priority": wish.priority,
        "home": wish.home,
        "hold": wish.hold,
        "public_key": made.public_key,
        "state": made.state.value,
        "nodes": json.dumps(made.nodes),
        "run": made.run,
        "reason": made.reason,
        "asked_at": made.asked_at,
        "granted_at": made.granted_at,
        "expires_at": made.expires_at,
        "held_at": made.held_at,
        "ended_at": made.ended_at,
    }


def to_event(row: Row[Any]) -> Event:
    """Make a value of a row of `event` that has its place."""
    return Event(
        id=row.place,
        at=row.at,
        kind=row.kind,
        text=row.body,
        lease=row.lease,
        node=row.node,
        user=row.person,
        urgent=bool(row.urgent),
    )


def to_visit(row: Row[Any]) -> Visit:
    """Make a value of a row of `visit`."""
    return Visit(
        id=row.id,
        lease=row.lease,
        user=row.person,
        node=row.node,
        client=row.client,
        key=row.public_key,
        opened_at=row.opened_at,
        closed_at=row.closed_at,
        bytes_in=row.bytes_in,
        bytes_out=row.bytes_out,
        refused=row.refused,
    )


def _labels(text: str) -> dict[str, str]:
    # Most have none, and candidates are read by the hundred.
    return {} if text == "{}" else json.loads(text)


def milliseconds(seconds: float) -> int:
    """Count a duration as the database does."""
    return max(0, round(seconds * 1000))


def fitting(text: str, most: int = 190) -> str:
    """Cut a text for people so that it fits its column."""
    return text if len(text) <= most else text[: most - 1] + "…"
