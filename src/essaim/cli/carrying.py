"""Carry out a plan before a person's eyes: wait for their turn, show it, ask, follow it, end."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from essaim.cli.asking import agree
from essaim.cli.drift import drift_lines
from essaim.cli.outcome import show_failures, show_hints
from essaim.cli.output import duration, inform, plan_lines, plan_summary, print_json, say
from essaim.cli.progress import Progress, redraws, show_command, shown
from essaim.cli.signals import acting
from essaim.cli.terminal import fold, is_terminal, show_cursor
from essaim.cli.tongue import said, tell

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.model.runs import CommandLog, Run
    from essaim.usecases.stacks import StoredPlan

PARTLY = 4
FAILED = 1
INTERRUPTED = 130


def carry_out(
    app: App,
    name: str,
    plan_it: Callable[[], StoredPlan],
    *,
    yes: bool,
    wait: bool,
    hints: bool = False,
    kind: str = "stack",
) -> dict[str, Any]:
    """Plan, show, ask and do; gives what a program is told of it, with the exit code.

    With `wait`, whoever is at work on it is waited for, and it is planned again after them.  No
    disk is lost without a yes.  With `hints`, what to type next is said after success.  `kind` is
    what programs know the name by.
    """
    from essaim.model.errors import HeldError

    while True:
        _clear(app, name, wait=wait)
        stored = plan_it()
        losing = any(change.destroys_disk for change in stored.plan.changes)
        show_plan(stored, always=losing and not yes)
        if not stored.plan.changes:
            return {kind: name, "changes": 0, "state": "done", "exit_code": 0}
        if losing:
            agree(said("run.ask_lost"), yes=yes)
        try:
            run, progress = _apply(app, stored)
        except HeldError:
            # Somebody was quicker between our look and our start.
            if not wait:
                raise
        else:
            outcome = _conclude(app, run, progress)
            if hints and not outcome["exit_code"]:
                show_hints(stored.stack)
            return {kind: name, **outcome}


def show_plan(stored: StoredPlan, *, always: bool = True) -> None:
    """Say what would be done, why, and about how long it would take; `always`, even when quiet."""
    show = say if always else inform
    if not stored.plan.changes:
        show(f"{stored.plan.stack}: nothing to change")
        return
    show(plan_summary(stored.plan))
    for note in stored.stack.notes:
        for line in fold(f"· {note}", indent="  "):
            show(line)
    for line in (*plan_lines(stored.plan), *drift_lines(stored.plan)):
        show(line)


def end(outcome: dict[str, Any], *, as_json: bool) -> None:
    """Leave with what `carry_out` gave."""
    if as_json:
        print_json(outcome)
    sys.exit(outcome["exit_code"])


def not_done(app: App, run: Run, done: int) -> int:
    """Say why a run is not done and what to type next; gives the exit code.

    `done` says how much of it is done.
    """
    from essaim.model.runs import RunState

    if run.state.over or run.state is RunState.STUCK:
        show_failures(app, run)
        tell("run.more", run=run.id)
        return PARTLY if done else FAILED
    tell("run.stopped", subject=run.subject, run=run.id)
    return INTERRUPTED


def show_commands(app: App) -> None:
    """Say of every command that this process runs on a machine that it has ended, and how."""
    from essaim.store.logs import CommandLogs

    class Shown(CommandLogs):
        @override
        def add(self, logs: Sequence[CommandLog]) -> None:
            super().add(logs)
            for log in logs:
                show_command(log)

    app.logs = Shown(app.database)


@contextmanager
def interruptible(app: App, progress: Progress | None = None) -> Iterator[None]:
    """Ctrl-C once: stop cleanly.  Twice: leave at once; the journal keeps everything anyway."""

    def stop() -> None:
        if progress is not None:
            progress.stop_drawing()  # so that the terminal is as it was if Ctrl-C comes again
        if is_terminal(sys.stderr):
            sys.stderr.write("\n")  # not behind what the terminal shows of Ctrl-C and progress
        if app.broker:
            tell("run.leaving")
        else:
            for line in fold(said("run.stopping"), hanging="  "):
                say(line)
            for each in progress.under_way() if progress is not None else ():
                inform(f"  · {each}")
        app.courier.interrupt()

    with acting(stop, signal.SIGINT, once=True, before_next=show_cursor):
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
                inform(f"essaim: {held.what}; waiting for it (Ctrl-C leaves)")
                said = True
            time.sleep(0.5)


def _apply(app: App, stored: StoredPlan) -> tuple[Run, Progress]:
    from essaim.usecases import stacks as use

    progress = Progress(stored.plan, live=redraws())
    app.watch = progress
    with interruptible(
        app, progress
    ):  # from its first moment on: then nothing is lost, and that is said
        run_id = use.apply(app, stored)
        with shown(progress):
            return use.follow(app, run_id), progress


def _conclude(app: App, run: Run, progress: Progress) -> dict[str, Any]:
    from essaim.model.runs import RunState

    took = time.monotonic() - progress.began
    code = 0
    if run.state is RunState.DONE:
        inform(f"{run.subject}: done in {duration(took)}  (run {run.id})")
    else:
        code = not_done(app, run, progress.done)
    return {
        "run": run.id, "state": run.state.value,
        "changes": progress.total, "done": progress.done,
        "seconds": round(took, 2), "error": run.error, "exit_code": code,
    }  # fmt: skip
