"""Workflows as tables: a name, and steps with `do`, `undo`, retry and an optional slot."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from essaim.model.runs import Again, NewRun, Run


class OnFailure(enum.StrEnum):
    """What a step's final failure does to its run."""

    UNDO = "undo"  #: undo the completed steps in reverse
    STOP = "stop"  #: leave everything as it is, so that a person can look; resume goes on from here


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How a step that raised TransientError is tried again: doubled waits with jitter."""

    attempts: int = 5
    first: float = 0.5
    longest: float = 30.0


class Context(Protocol):
    """What a step is given.  The engine's own implementation is in `engine.context`."""

    @property
    def run(self) -> Run:
        """The run this step belongs to."""

    @property
    def outputs(self) -> Mapping[str, Mapping[str, Any]]:
        """What the completed steps returned, by step name."""

    @property
    def step(self) -> str:
        """The name of the step."""

    @property
    def attempt(self) -> int:
        """1 for the first try of this step."""

    @property
    def elapsed(self) -> float:
        """Seconds since this step first began, over all its tries and pauses."""

    @property
    def tools(self) -> Any:
        """The services steps act through, given to the engine once."""

    def note(self, text: str) -> None:
        """Say what is going on, for whoever watches."""

    def spawn(self, runs: Sequence[NewRun]) -> None:
        """Add child runs, in one transaction; those already there are left as they are."""

    def children(self) -> list[Run]:
        """List this run's children as the journal has them now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step.  `do` may be executed more than once and must find its own earlier work.

    One that is `stored` acts on the store alone and returns nothing: it is done in the very
    transaction that writes its end, so it happens once, and costs no write of its own.
    """

    name: str
    do: Callable[[Context], Mapping[str, Any] | Again | None]
    undo: Callable[[Context], Again | None] | None = None
    slot: Callable[[Run], str] | None = None  #: names what is limited, e.g. `start:local`
    retry: Backoff = Backoff()
    on_failure: OnFailure = OnFailure.UNDO
    stored: bool = False


@dataclass(frozen=True, slots=True)
class Workflow:
    """A linear table of steps."""

    name: str
    steps: tuple[Step, ...] = field(default_factory=tuple)

    def step(self, name: str) -> Step:
        """Return the step of that name."""
        return next(step for step in self.steps if step.name == name)
