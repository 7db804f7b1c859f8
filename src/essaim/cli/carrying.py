"""Carry out a plan before a person's eyes: wait for their turn, show it, ask, follow it, end."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from essaim.cli.asking import agree
from essaim.cli.drift import drift_lines
from essaim.cli.output import duration, plan_lines, plan_summary, print_json, say
from essaim.cli.progress import Progress, on_terminal, shown
from essaim.cli.signals import acting
from essaim.cli.tongue import in_their_language, said, tell

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.model.runs import Run
    from essaim.usecases.stacks import StoredPlan

PARTLY = 4
FAILED = 1
INTERRUPTED = 130

#: Changes that cost a machine its disk.
_LOSING = frozenset({"retire", "rebuild", "unhost", "rehost", "reopen"})


def carry_out(
    app: App,
    name: str,
    plan_it: Callable[[], StoredPlan],
    *,
    yes: bool,
    wait: bool,
    must: bool = False,
    all_goes: bool = False,
    kind: str = "stack",
) -> dict[str, Any]:
    """Plan, show, ask and do; gives what a program is told of it, with the exit code.

    With `wait`, whoever is at work on it is waited for, and it is planned again after them.
    With `must`, disks are not lost without a yes, also where nobody is there to ask; when
    `all_goes` that is so, and the question comes in any case.  `kind` is what programs know the
    name by.
    """
    from essaim.model.errors import HeldError

    while True:
        _clear(app, name, wait=wait)
        stored = plan_it()
        show_plan(stored)
        if not stored.plan.changes:
            return {kind: name, "changes": 0, "state": "done", "exit_code": 0}
        if all_goes or any(change.verb in _LOSING for change in stored.plan.changes):
            question = said("run.ask_lost")
            agree(question, yes=yes, must=must or all_goes)
        try:
            run, progress = _apply(app, stored)
        except HeldError:
            # Somebody was quicker between our look and our start.
            if not wait:
                raise
        else:
            return {kind: name, **_conclude(run, progress)}


def show_plan(stored: StoredPlan) -> None:
    """Say what would be done, why, and about how long it would take."""
    if not stored.plan.changes:
        say(f"{stored.plan.stack}: nothing to change")
        return
    say(plan_summary(stored.plan))
    for note in stored.stack.notes:
        say(f"  · {note}")
    for line in (*plan_lines(stored.plan), *drift_lines(stored.plan)):
        say(line)


def end(outcome: dict[str, Any], *, as_json: bool) -> None:
    """Leave with what `carry_out` gave."""
    if as_json:
        print_json(outcome)
    sys.exit(outcome["exit_code"])


def not_done(run: Run, done: int) -> int:
    """Say why a run is not done and what to type next; gives the exit code.

    `done` says how much of it is done.
    """
    from essaim.model.runs import RunState

    if run.state.over or run.state is RunState.STUCK:
        say(f"{run.subject}: {in_their_language(run.error)}")
        tell("run.more", run=run.id)
        return PARTLY if done else FAILED
    tell("run.stopped", subject=run.subject, run=run.id)
    return INTERRUPTED


@contextmanager
def interruptible(app: App) -> Iterator[None]:
    """Ctrl-C once: stop cleanly.  Twice: leave at once; the journal keeps everything anyway."""

    def stop() -> None:
        if on_terminal():
            sys.stderr.write("\n")  # not behind what the terminal shows of Ctrl-C and progress
        if app.broker:
            tell("run.leaving")
        else:
            tell("run.stopping")
        app.courier.interrupt()

    with acting(stop, signal.SIGINT, once=True):
        yield


def _clear(app: App, name: str, *, wait: bool) -> None:
    """Wait until nobody else works on it, saying who does."""
    from essaim.model.errors import HeldError
    from essaim.usecases import stacks as use

    said = False
    while True:
        try:
            use.give_way(app, name)
            return
        except HeldError as held:
            if not wait:
                raise
            if not said:
                say(f"essaim: {held.what}; waiting for it (Ctrl-C leaves)")
                said = True
            time.sleep(0.5)


def _apply(app: App, stored: StoredPlan) -> tuple[Run, Progress]:
    from essaim.usecases import stacks as use

    progress = Progress(stored.plan, live=on_terminal())
    app.watch = progress
    with interruptible(app):  # from its first moment on: then nothing is lost, and that is said
        run_id = use.apply(app, stored)
        with shown(progress):
            return use.follow(app, run_id), progress


def _conclude(run: Run, progress: Progress) -> dict[str, Any]:
    from essaim.model.runs import RunState

    took = time.monotonic() - progress.began
    code = 0
    if run.state is RunState.DONE:
        say(f"{run.subject}: done in {duration(took)}  (run {run.id})")
    else:
        code = not_done(run, progress.done)
    return {
        "run": run.id, "state": run.state.value,
        "changes": progress.total, "done": progress.done,
        "seconds": round(took, 2), "error": run.error, "exit_code": code,
    }  # fmt: skip
