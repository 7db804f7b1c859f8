"""What a person sees while a plan is carried out."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from essaim.cli.output import COLOURS, duration, inform, say
from essaim.cli.terminal import (
    USUAL,
    Verbosity,
    columns,
    fitting,
    fold,
    is_terminal,
    paint,
    shorten,
    verbosity,
)

if TYPE_CHECKING:
    from essaim.model.plans import Plan
    from essaim.model.runs import CommandLog, Event

#: Past tense of what a change does, for the line that reports it.
_DID = {
    "raise": "up", "start": "started", "rebuild": "made anew", "configure": "configured",
    "retire": "removed", "destroy": "removed", "build": "built",
}  # fmt: skip
_SYMBOL = {"retire": "-", "destroy": "-", "start": "~", "rebuild": "~", "configure": "~"}
#: Columns for each machine, for what is done to it, and for how long that takes already.
_SUBJECT, _WORKFLOW, _TIME = 32, 10, 9
_BAR = 20


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
    """Counts what is done and knows what is under way.  Called from worker threads.

    Lines are printed after the lock is released: while the display is drawn, whatever is printed
    goes through it, and drawing takes the lock.
    """

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
        self._display = _Display(self)

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        if event.kind == "waiting" and event.text != self.lacks and not event.step:
            self.lacks = event.text
            self._display.print([f"  · {event.subject}: {event.text}"], inform)
        if event.parent is None:
            return
        with self.lock:
            lines = list(self._take(event))
        self._display.print(lines, say if event.kind in ("failed", "stuck") else inform)

    def _take(self, event: Event) -> Iterator[str]:
        """Take note of an event; gives the lines to print about it."""
        now = time.monotonic()
        if event.kind in ("done", "failed", "stuck"):
            yield from self._end(event, self.active.pop(event.run, None), now)
        elif event.kind == "waiting":
            self.active.pop(event.run, None)
        else:
            fresh = Doing(event.workflow, event.subject, now)
            doing = self.active.setdefault(event.run, fresh)
            doing.step = event.step or doing.step
            doing.text = event.text or doing.text
            yield from self._detail(event, doing, now)

    def _detail(self, event: Event, doing: Doing, now: float) -> Iterator[str]:
        if verbosity() is Verbosity.VERBOSE:
            said = ": ".join(filter(None, (event.step, event.text)))
            yield f"  · {event.subject} {event.workflow}: {said or event.kind}"
        elif event.workflow == "build" and event.text and now - doing.said > _QUIET:
            doing.said = now
            if not self.live:
                yield f"  · {event.subject}: {event.text}"

    def _end(self, event: Event, doing: Doing | None, now: float) -> Iterator[str]:
        took = f"  {duration(now - doing.since)}" if doing else ""
        if event.kind != "done":
            why = event.text.splitlines()[0] if event.text else event.kind
            why = why.removeprefix(f"{event.subject.partition(':')[0]}: ")
            for line in fold(f"✗ {event.subject}: {why}", indent="  "):
                yield paint(line, "red", sys.stderr)
            return
        self.done += 1
        if not self.live and event.workflow != "gate":
            symbol = _SYMBOL.get(event.workflow, "+")
            did = f"{event.subject} {_DID.get(event.workflow, 'done')}{took}"
            yield f"  {paint(symbol, COLOURS[symbol], sys.stderr)} {did}"

    def under_way(self) -> list[str]:
        """What is being done at this moment, the longest first."""
        with self.lock:
            rows = sorted(self.active.values(), key=lambda doing: doing.since)
        return [f"{doing.subject} ({doing.workflow})" for doing in rows]

    def __rich__(self) -> Any:
        """Draw the state of things: a bar, then what each machine is doing and for how long."""
        from rich.console import Group
        from rich.text import Text

        now = time.monotonic()
        with self.lock:
            rows = sorted(self.active.values(), key=lambda doing: doing.since)
            done, spent = self.done, self._time(now)
        width = columns(sys.__stderr__ or sys.stderr) or USUAL
        filled = _BAR * done // max(self.total, 1)
        counts = f"{done} of {self.total}"
        head = Text(no_wrap=True, overflow="ellipsis")
        name = shorten(self.plan.stack, max(width - _BAR - len(counts) - len(spent) - 7, 8))
        head.append(name, "bold").append("  ")
        head.append("━" * filled, "green").append("━" * (_BAR - filled), "dim")
        head.append(f"  {counts}  {spent}")
        lines = [Text(_row(doing, now, width), no_wrap=True) for doing in rows[:_ROWS]]
        if len(rows) > _ROWS:
            lines.append(Text(f"  … and {len(rows) - _ROWS} more"))
        return Group(head, *lines)

    def _time(self, now: float) -> str:
        passed = now - self.began
        if not self.plan.seconds or passed > self.plan.seconds:
            return duration(passed)
        return f"{duration(passed)}, about {duration(self.plan.seconds - passed)} left"

    def draw(self) -> None:
        """Begin to redraw the state of things on the terminal."""
        self._display.start()

    def stop_drawing(self) -> None:
        """Give the terminal back as it was; from now on plain lines are printed."""
        self._display.stop()


class _Display:
    """The part of the terminal that is redrawn.  It may be ended before it has begun.

    One at a time draws or prints above it: each moves the cursor from where the other has left it.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._drawn: Any = None

    def start(self) -> None:
        with self._lock:
            if not self._progress.live:
                return
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            self._drawn = Live(self._progress, console=console, auto_refresh=False, transient=True)
            self._drawn.start(refresh=True)
            threading.Thread(target=self._redraw, name="essaim-display", daemon=True).start()

    def _redraw(self) -> None:
        while not self._ended.wait(_FRAME):
            with self._lock:
                if self._drawn is not None:
                    self._drawn.refresh()

    def print(self, lines: Iterable[str], tell: Callable[[str], None]) -> None:
        with self._lock:
            for line in lines:
                tell(line)

    def stop(self) -> None:
        with self._lock:
            self._progress.live = False
            self._ended.set()
            if self._drawn is not None:
                self._drawn.stop()
                self._drawn = None


def _row(doing: Doing, now: float, width: int) -> str:
    """What one machine is doing, on one line of the terminal."""
    subject = shorten(doing.subject, _SUBJECT)
    room = max(width - _SUBJECT - _WORKFLOW - _TIME - 6, 8)
    text = shorten(doing.text or doing.step, room)
    took = duration(now - doing.since)
    line = f"  {subject:<{_SUBJECT}} {doing.workflow:<{_WORKFLOW}} {text:<{room}} {took:>{_TIME}}"
    return shorten(line, width)


#: Seconds between two pictures.
_FRAME = 0.125

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
        if verbosity() is Verbosity.NORMAL and on_terminal():
            sys.stderr.write(f"\r\033[K{fitting(f'  · {text}')}\r")
            sys.stderr.flush()
        elif verbosity() is Verbosity.VERBOSE or time.monotonic() - self._said >= _QUIET:
            self._said = time.monotonic()
            inform(f"  · {text}")


def show_command(log: CommandLog) -> None:
    """Say that a command has ended on a machine, and how."""
    mark = "ok" if log.exit_code == 0 else f"exit {log.exit_code}"
    command, more, _ = log.command.strip().partition("\n")
    text = f"$ {command}{' …' if more else ''}  [{log.machine}, {mark}, {duration(log.seconds)}]"
    for line in fold(text, indent="    ", hanging="      "):
        inform(paint(line, "" if log.exit_code == 0 else "red", sys.stderr))


@contextmanager
def shown(progress: Progress) -> Iterator[None]:
    """Show progress while the body runs: redrawn on a terminal, plain lines otherwise."""
    progress.draw()
    try:
        yield
    finally:
        progress.stop_drawing()


def redraws() -> bool:
    """Whether progress is redrawn in place: a person watches, and asked for nothing else."""
    return verbosity() is Verbosity.NORMAL and on_terminal()


def on_terminal() -> bool:
    """Whether a person watches, on a terminal whose lines can be redrawn."""
    return is_terminal(sys.stderr)
