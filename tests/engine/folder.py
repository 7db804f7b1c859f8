"""A world of files for workflows to act on, and a workflow with everything in it.

Each thing made is a file of its own with a random name, so that making it twice shows.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from essaim.engine.workflow import Backoff, Context, Step, Workflow
from essaim.model.errors import TransientError
from essaim.model.runs import Again
from workflows.generic import Case


class Folder:
    """The outside: it knows nothing of runs but the names it is given."""

    def __init__(self, place: Path) -> None:
        self.place = place / "world"
        self.place.mkdir(exist_ok=True)

    def find(self, kind: str, name: str) -> list[Path]:
        return sorted(self.place.glob(f"{kind}={name}=*"))

    def make(self, kind: str, name: str) -> None:
        (self.place / f"{kind}={name}={secrets.token_hex(4)}").touch()

    def ensure(self, kind: str, name: str) -> bool:
        """Make it unless it is there; whether it was."""
        found = bool(self.find(kind, name))
        if not found:
            self.make(kind, name)
        return found

    def remove(self, kind: str, name: str) -> None:
        for path in self.find(kind, name):
            path.unlink()

    def seen(self) -> list[str]:
        """Everything there is, by kind: the names of runs and the random parts do not matter."""
        return sorted(path.name.partition("=")[0] for path in self.place.iterdir())


def reserve(context: Context) -> dict[str, Any]:
    context.tools.ensure("reserved", context.run.id)
    return {"number": 7, "by": context.run.subject}


def free(context: Context) -> None:
    context.tools.remove("reserved", context.run.id)


def clone(context: Context) -> Again | None:
    """Begins at once and is finished only when it is looked at again."""
    assert context.outputs["reserve"]["number"] == 7
    if not context.tools.ensure("disk", context.run.id):
        return Again(0.001, note="copying")
    return None


def destroy(context: Context) -> Again | None:
    if context.tools.find("disk", context.run.id):
        context.tools.remove("disk", context.run.id)
        return Again(0.001, note="deleting")
    return None


def start(context: Context) -> dict[str, Any]:
    if not context.tools.find("power", context.run.id) and context.attempt == 1:
        raise TransientError("no answer", hint="it will")
    context.tools.ensure("power", context.run.id)
    return {"address": "10.0.0.7"}


def stop(context: Context) -> None:
    context.tools.remove("power", context.run.id)


def look(context: Context) -> None:
    """Only looks."""
    context.note("looking")
    assert context.tools.find("power", context.run.id)


def hand_over(context: Context) -> None:
    assert context.outputs["start"]["address"]
    context.tools.ensure("lease", context.run.id)


def close(context: Context) -> None:
    context.tools.remove("lease", context.run.id)


SOON = Backoff(attempts=3, first=0.002, longest=0.002)

RENT = Workflow(
    "rent",
    (
        Step(name="reserve", do=reserve, undo=free),
        Step(name="clone", do=clone, undo=destroy, slot=lambda run: f"clone:{run.subject}"),
        Step(name="start", do=start, undo=stop, retry=SOON, slot=lambda _run: "start"),
        Step(name="look", do=look),  # no undo: it only looks
        Step(name="hand_over", do=hand_over, undo=close),
    ),
)


def make_case(place: Path) -> Case:
    world = Folder(place)
    return Case(workflow=RENT, tools=world, seen=world.seen)
