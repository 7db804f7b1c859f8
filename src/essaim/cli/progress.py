"""What a person sees while a plan is carried out."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from essaim.cli.output import duration, say

if TYPE_CHECKING:
    from essaim.model.plans import Plan
    from essaim.model.runs import Event

#: Past tense of what a change does, for the line that reports it.
_DID = {
    "raise": "up", "start": "started", "rebuild": "made anew", "configure": "configured",
    "retire": "removed", "destroy": "removed", "build": "built",
}  # fmt: skip
_SYMBOL = {"retire": "-", "destroy": "-", "start": "~", "rebuild": "~", "configure": "~"}


@dataclass
class Doing:
    """One change under way."""

    workflow: str
    subject: str
    since: float
    step: str = ""
    text: str = ""
    said: float = 0.0


@dataclass
class Progress:
    """Counts what is done and knows what is under way.  Called from worker threads."""

    plan: Plan
    live: bool
    began: float = field(default_factory=time.monotonic)
    done: int = 0
    active: dict[str, Doing] = field(default_factory=dict)
    lacks: str = ""  #: why nobody carries anything
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        parents = ("open", "reopen", "close")
        self.total = sum(change.verb not in parents for change in self.plan.changes)

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        if event.kind == "waiting" and event.text != self.lacks and not event.step:
            self.lacks = event.text
            say(f"  · {event.subject}: {event.text}")
        if event.parent is None:
            return
        with self.lock:
            self._take(event)

    def _take(self, event: Event) -> None:
        now = time.monotonic()
        if event.kind in ("done", "failed", "stuck"):
            self._end(event, self.active.pop(event.run, None), now)
        elif event.kind == "waiting":
            self.active.pop(event.run, None)
        else:
            fresh = Doing(event.workflow, event.subject, now)
            doing = self.active.setdefault(event.run, fresh)
            doing.step = event.step or doing.step
            doing.text = event.text or doing.text
            long = event.workflow == "build" and event.text and now - doing.said > _QUIET
            if long and not self.live:
                doing.said = now
                say(f"  · {event.subject}: {event.text}")

    def _end(self, event: Event, doing: Doing | None, now: float) -> None:
        took = f"  {duration(now - doing.since)}" if doing else ""
        if event.kind != "done":
            say(f"  ✗ {event.subject}: {event.text.splitlines()[0] if event.text else event.kind}")
            return
        self.done += 1
        if not self.live and event.workflow != "gate":
            symbol = _SYMBOL.get(event.workflow, "+")
            say(f"  {symbol} {event.subject} {_DID.get(event.workflow, 'done')}{took}")

    def __rich__(self) -> Any:
        """Draw the state of things: a bar, then what each machine is doing and for how long."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        head = Table.grid(padding=(0, 2))
        with self.lock:
            bar = ProgressBar(total=max(self.total, 1), completed=self.done, width=30)
            counts = f"{self.done} of {self.total}"
            head.add_row(f"[bold]{self.plan.stack}[/bold]", bar, counts, self._time(now))
            rows = sorted(self.active.values(), key=lambda doing: doing.since)
        body = Table.grid(padding=(0, 2))
        for doing in rows[:_ROWS]:
            text = Text(doing.text or doing.step, style="dim", no_wrap=True, overflow="ellipsis")
            body.add_row("  " + doing.subject, doing.workflow, text, duration(now - doing.since))
        if len(rows) > _ROWS:
            body.add_row(f"  … and {len(rows) - _ROWS} more", "", "", "")
        return Group(head, body)

    def _time(self, now: float) -> str:
        passed = now - self.began
        if not self.plan.seconds or passed > self.plan.seconds:
            return duration(passed)
        return f"{duration(passed)}, about {duration(self.plan.seconds - passed)} left"


#: Seconds between two plain lines about the same long piece of work.
_QUIET = 5.0

#: Lines of detail: what fits a small terminal.
_ROWS = 14


class Notes:
    """Notes on one long piece of work: on one line of a terminal, else now and then a line."""

    def __init__(self) -> None:
        self._said = -_QUIET

    def __call__(self, text: str) -> None:
        """Show a note."""
        if on_terminal():
            sys.stderr.write(f"\r\033[K  · {text}\r")
            sys.stderr.flush()
        elif time.monotonic() - self._said >= _QUIET:
            self._said = time.monotonic()
            say(f"  · {text}")


@contextmanager
def shown(progress: Progress) -> Iterator[None]:
    """Show progress while the body runs: redrawn on a terminal, plain lines otherwise."""
    if not progress.live:
        yield
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with Live(progress, console=console, refresh_per_second=8, transient=True):
        yield


def on_terminal() -> bool:
    """Whether a person watches."""
    return sys.stderr.isatty()
