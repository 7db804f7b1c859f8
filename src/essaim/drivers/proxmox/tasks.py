"""Tasks of a cluster: what they are called, how they end, and how long they take."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from essaim.drivers.proxmox.api import Api, ApiError
from essaim.drivers.proxmox.refusals import Refusal

_UPID = re.compile(
    r"UPID:(?P<node>[^:\s]+):(?P<pid>[0-9A-Fa-f]{8,9}):(?P<pstart>[0-9A-Fa-f]{8,9}):"
    r"(?P<start>[0-9A-Fa-f]{8}):(?P<type>[^:\s]+):(?P<id>[^:\s]*):(?P<user>[^:\s]+):"
)
#: How much the newest duration counts among those before it.
_NEWEST = 0.3
#: By which share of its time another may differ, when only one has ended.
_FIRST_SPREAD = 0.1


@dataclass(frozen=True, slots=True)
class Upid:
    """What a task is called, taken apart."""

    node: str
    kind: str  #: vzclone, qmstart, …
    id: str  #: of the machine it works on; of a clone, its source
    user: str
    start: int  #: seconds since 1970


def read_upid(text: str) -> Upid | None:
    """Take the name of a task apart; None when it is none."""
    found = _UPID.fullmatch(text)
    if found is None:
        return None
    return Upid(found["node"], found["type"], found["id"], found["user"], int(found["start"], 16))


def went_well(end: str) -> bool:
    """Whether the last word of a task is a good one."""
    return end == "OK" or end.startswith("WARNINGS")


@dataclass(frozen=True, slots=True)
class Usual:
    """What something usually takes, and by how much one differs from another, in seconds."""

    seconds: float
    spread: float


class Durations:
    """How long things take, learnt from those that ended."""

    def __init__(self) -> None:
        self._known: dict[str, Usual] = {}

    def expected(self, kind: str) -> Usual | None:
        """What one of a kind will take; None when none has ended yet."""
        return self._known.get(kind)

    def ended(self, kind: str, seconds: float) -> None:
        """One took so long."""
        before = self._known.get(kind) or Usual(seconds, seconds * _FIRST_SPREAD)
        apart = seconds - before.seconds
        self._known[kind] = Usual(
            before.seconds + _NEWEST * apart,
            before.spread + _NEWEST * (abs(apart) - before.spread),
        )


def end_of(api: Api, upid: str) -> str | None:
    """How a task ended; None when it has not, or its node does not say."""
    parts = read_upid(upid)
    if parts is None:
        return f"{upid!r} is no task"
    try:
        state: dict[str, Any] = api.get(f"nodes/{parts.node}/tasks/{upid}/status")
    except ApiError as error:
        if error.kind is Refusal.LOST:
            return None
        if error.kind is Refusal.GONE or "no such task" in error.text:
            return "the cluster has forgotten the task"
        raise
    return str(state.get("exitstatus") or "") if state.get("status") == "stopped" else None
