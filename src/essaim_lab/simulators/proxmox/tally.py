"""What was asked, refused and done, in numbers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any

_UPID = re.compile(r"UPID:[^/\s']+")
_NUMBER = re.compile(r"\d{3,}")
_NODE = re.compile(r"^/nodes/[^/]+")


class Tally:
    """Counts; numbers of machines and names of nodes are left out."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.tasks: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.first = self.last = 0.0  #: when the first task began, and the last one ended

    def request(self, method: str, path: str) -> None:
        """One was made."""
        short = _NUMBER.sub("*", _UPID.sub("*", _NODE.sub("/nodes/*", path)))
        self.requests[f"{method} {short}"] += 1

    def refusal(self, status: int, message: str) -> None:
        """One was refused."""
        self.refusals[f"{status} {_NUMBER.sub('N', message)}"] += 1

    def begun(self, now: float) -> None:
        """A task began."""
        self.first = self.first or now

    def ended(self, kind: str, status: str, now: float) -> None:
        """A task ended."""
        self.tasks[kind][_NUMBER.sub("N", status)] += 1
        self.last = now

    def told(self) -> dict[str, Any]:
        """All of it, for programs; `seconds` is from the first task's begin to the last's end."""
        return {
            "requests": dict(self.requests),
            "refusals": dict(self.refusals),
            "tasks": {kind: dict(ends) for kind, ends in self.tasks.items()},
            "seconds": max(0.0, self.last - self.first),
        }
