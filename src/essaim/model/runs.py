"""Runs: durable executions of a workflow on one subject, as rows of a journal."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class RunState(enum.StrEnum):
    """Where a run is in its life."""

    READY = "ready"  #: may be claimed once `wake_at` has come
    RUNNING = "running"  #: a worker holds it
    WAITING = "waiting"  #: for other runs to be done
    DONE = "done"
    FAILED = "failed"  #: could not go on; what it had done is undone
    STUCK = "stuck"  #: a person decides: resume or abandon
    ABANDONED = "abandoned"  #: given up as it was, by a person or by a newer goal

    @property
    def over(self) -> bool:
        """No worker will ever touch it again."""
        return self in (RunState.DONE, RunState.FAILED, RunState.ABANDONED)

    @property
    def moving(self) -> bool:
        """A worker is at it, or will be without anybody's doing."""
        return self in (RunState.READY, RunState.RUNNING, RunState.WAITING)


class StepState(enum.StrEnum):
    """Where a step is."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    UNDOING = "undoing"
    UNDONE = "undone"


@dataclass(frozen=True, slots=True)
class Again:
    """A step's answer when it is not finished: look again `after` seconds; no thread waits."""

    after: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to be added to the journal."""

    id: str
    workflow: str
    subject: str  #: machine, role on a machine, or stack: what it works on
    input: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None
    waits_for: tuple[str, ...] = ()  #: runs that must be DONE before it may start
    holds: str | None = None  #: an exclusive name kept until the run is over
    who: str = ""  #: the person and place that asked
    site: str = ""  #: whose workers may carry it: the parent's unless named, else anybody's


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as the journal has it.  Times are milliseconds since 1970 in the database's clock."""

    id: str
    workflow: str
    subject: str
    input: Mapping[str, Any]
    state: RunState
    undoing: bool = False
    parent: str | None = None
    who: str = ""
    note: str = ""  #: what it is doing or waiting for, for people
    error: str = ""
    owner: str = ""
    epoch: int = 0
    site: str = ""  #: whose workers may carry it; empty for anybody's
    created_at: int = 0
    wake_at: int = 0
    finished_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A step as the journal has it."""

    run: str
    name: str
    state: StepState
    output: Mapping[str, Any] | None = None
    attempts: int = 0
    error: str = ""
    started_at: int = 0
    finished_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLog:
    """One command that ran on a machine, with what it printed.  Secrets are already masked."""

    run: str
    step: str
    machine: str
    command: str
    exit_code: int
    output: str
    started_at: float  #: seconds since 1970
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something a watcher may want to see at once.  The journal remains the truth."""

    run: str
    workflow: str
    subject: str
    parent: str | None
    kind: str  #: started | step | note | waiting | done | failed | stuck | undoing
    step: str = ""
    text: str = ""


def child_id(parent: str, key: str) -> str:
    """Name a child run after its parent, so that spawning twice finds the first."""
    return f"{parent}.{key}"
