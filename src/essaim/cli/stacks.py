"""`up`, `plan`, `down`, `status`."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essaim.cli.output import duration, plan_lines, plan_summary, print_json, say, table
from essaim.cli.progress import Progress, on_terminal, shown

if TYPE_CHECKING:
    from essaim.bootstrap import App
    from essaim.config.compose import Composed
    from essaim.model.runs import Run
    from essaim.usecases.stacks import StoredPlan

PARTLY = 4
FAILED = 1
INTERRUPTED = 130

Where = Annotated[
    str, typer.Argument(metavar="STACK", help="A directory with stack.yaml, or a YAML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Hydra overrides: nodes=8 scheduler=oar +x=1 ~y"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before removing machines.")]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait when somebody else works on the stack.")
]
Again = Annotated[
    bool, typer.Option("--again", help="Apply every role once more, even where nothing changed.")
]
Locked = Annotated[
    bool, typer.Option("--locked", help="Refuse what is not as in essaim.lock, in words.")
]
Sweep = Annotated[
    bool, typer.Option("--multirun", "-m", help="One stack for each value: scheduler=slurm,oar")
]


def up(
    where: Annotated[
        str | None,
        typer.Argument(metavar="STACK", help="A directory with stack.yaml, or a YAML file."),
    ] = None,
    overrides: Overrides = None,
    stored: Annotated[
        str, typer.Option("--plan", metavar="ID", help="Apply this stored plan, unchanged.")
    ] = "",
    multirun: Sweep = False,
    locked: Locked = False,
    again: Again = False,
    yes: Yes = False,
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """Make the machines a stack describes, or change those there are until they match.

    Safe to repeat: what is already right is left alone, what was interrupted goes on.
    """
    from essaim.usecases import stacks as use

    if (where is None) == (not stored) or (locked and (stored or multirun)):
        raise typer.BadParameter(
            "give a STACK to bring up, or --plan ID; --locked is for one STACK"
        )
    outcomes = []
    with control_plane() as app:
        if where is None:
            ready = use.read_plan(app, stored)
            use.give_way(app, ready.plan.stack)
            outcomes.append(_carry_out(app, ready, yes=yes))
        else:
            outcomes += [
                _bring_up(app, where, each, locked=locked, again=again, yes=yes, wait=wait)
                for each in _sweep(where, overrides or [], multirun=multirun)
            ]
    if as_json:
        print_json(outcomes if multirun else outcomes[0])
    sys.exit(max(outcome["exit_code"] for outcome in outcomes))


def plan(
    where: Where,
    overrides: Overrides = None,
    multirun: Sweep = False,
    again: Again = False,
    as_json: Json = False,
) -> None:
    """Say what `up` would do, why, and about how long it would take.  Changes nothing."""
    from essaim.config.compose import compose
    from essaim.plan.serial import plan_to_json
    from essaim.usecases import stacks as use

    found: list[dict[str, Any]] = []
    with control_plane() as app:
        for each in _sweep(where, overrides or [], multirun=multirun):
            stored = use.make_plan(app, compose(where, each), again=again)
            found.append({"id": stored.id, **plan_to_json(stored.plan)})
            if not as_json:
                _show(stored)
                if stored.plan.changes:
                    say(f"apply exactly this with: essaim up --plan {stored.id}")
    if as_json:
        print_json(found if multirun else found[0])


def down(
    name: Annotated[str, typer.Argument(metavar="STACK", help="The stack's name, as in `status`.")],
    yes: Yes = False,
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """Remove a stack: its machines, their disks and their network.  The journal stays."""
    from essaim.usecases import stacks as use

    with control_plane() as app:
        _clear(app, name, wait=wait)
        outcome = _carry_out(app, use.make_down_plan(app, name), yes=yes, ask=True)
    if as_json:
        print_json(outcome)
    sys.exit(outcome["exit_code"])


def status(
    name: Annotated[str, typer.Argument(metavar="[STACK]", help="All stacks when absent.")] = "",
    as_json: Json = False,
) -> None:
    """Show stacks and their machines as they are now."""
    from essaim.usecases import stacks as use

    with control_plane() as app:
        names = [name] if name else app.stacks.list_stacks()
        found = [use.status(app, each) for each in names]
    if as_json:
        print_json(found)
        return
    if not found:
        say("no stacks yet; make one with: essaim up examples/bare")
    for stack in found:
        _show_status(stack)


# -- how it is done ---------------------------------------------------------------------------


@contextmanager
def control_plane() -> Iterator[App]:
    """Open the control plane for one command and close it properly."""
    from essaim.bootstrap import App

    app = App()
    try:
        yield app
    finally:
        app.close()


def _sweep(where: str, overrides: list[str], *, multirun: bool) -> list[tuple[str, ...]]:
    if not multirun:
        return [tuple(overrides)]
    from essaim.config.compose import sweep

    return sweep(where, overrides)


def _bring_up(
    app: App,
    where: str,
    overrides: tuple[str, ...],
    *,
    locked: bool,
    again: bool,
    yes: bool,
    wait: bool,
) -> dict[str, Any]:
    from essaim.config.compose import compose
    from essaim.model.errors import HeldError
    from essaim.usecases import stacks as use

    composed = _compose_locked(app, where, overrides) if locked else compose(where, overrides)
    while True:
        _clear(app, composed.stack.name, wait=wait)
        stored = use.make_plan(app, composed, again=again)
        if not stored.plan.changes:
            say(f"{stored.plan.stack}: nothing to change")
            return {"stack": stored.plan.stack, "changes": 0, "state": "done", "exit_code": 0}
        try:
            return _carry_out(app, stored, yes=yes)
        except HeldError:
            # Somebody was quicker between our look and our start.
            if not wait:
                raise


def _compose_locked(app: App, where: str, overrides: tuple[str, ...]) -> Composed:
    """Compose a stack as it was locked; what is not is refused."""
    from essaim.cli.locks import hold_to_lock, locked_overrides
    from essaim.config.compose import compose

    composed = compose(where, overrides or locked_overrides(where))
    hold_to_lock(app, composed)
    return composed


def _clear(app: App, name: str, *, wait: bool) -> None:
    """Wait until nobody else works on the stack, saying who does."""
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


def _carry_out(app: App, stored: StoredPlan, *, yes: bool, ask: bool = False) -> dict[str, Any]:
    from essaim.usecases import stacks as use

    _show(stored)
    _confirm(stored, yes=yes, ask=ask)
    progress = Progress(stored.plan, live=on_terminal())
    app.watch = progress
    run_id = use.apply(app, stored)
    with interruptible(app), shown(progress):
        run = use.follow(app, run_id)
    return _conclude(run, progress)


def _confirm(stored: StoredPlan, *, yes: bool, ask: bool) -> None:
    losing = [c for c in stored.plan.changes if c.verb in ("retire", "rebuild", "reopen")]
    if yes or not (losing or ask):
        return
    if not sys.stdin.isatty():
        if ask:
            raise typer.BadParameter("nobody here to ask: say --yes to remove the stack")
        return
    typer.confirm("The disks of removed machines are lost. Go on?", abort=True, err=True)


@contextmanager
def interruptible(app: App) -> Iterator[None]:
    """Ctrl-C once: stop cleanly.  Twice: leave at once; the journal keeps everything anyway."""

    def stop(_signal: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if app.broker:
            say("leaving; the workers go on with it")
        else:
            say("stopping; what is under way is finished first (Ctrl-C again leaves at once)")
        app.courier.interrupt()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _conclude(run: Run, progress: Progress) -> dict[str, Any]:
    from essaim.model.runs import RunState

    took = time.monotonic() - progress.began
    outcome = {
        "stack": run.subject, "run": run.id, "state": run.state.value,
        "changes": progress.total, "done": progress.done,
        "seconds": round(took, 2), "error": run.error, "exit_code": 0,
    }  # fmt: skip
    if run.state is RunState.DONE:
        say(f"{run.subject}: done in {duration(took)}  (run {run.id})")
    elif run.state.over or run.state is RunState.STUCK:
        say(f"{run.subject}: {run.error}")
        say(f"  → essaim runs show {run.id} tells more; essaim up again goes on from there")
        outcome["exit_code"] = PARTLY if progress.done else FAILED
    else:
        say(f"{run.subject}: stopped; nothing is lost. Go on with the same command (run {run.id})")
        outcome["exit_code"] = INTERRUPTED
    return outcome


def _show(stored: StoredPlan) -> None:
    if not stored.plan.changes:
        say(f"{stored.plan.stack}: nothing to change")
        return
    say(plan_summary(stored.plan))
    for line in plan_lines(stored.plan):
        say(line)


def _show_status(stack: Any) -> None:
    run = stack.run
    last = f", last run {run.id} {run.state.value}" if run else ""
    say(f"{stack.name} on {stack.site} ({stack.source}{last})")
    rows = [
        (m.name, m.power, m.address, " ".join(m.roles), " ".join(m.pending) or "-")
        for m in stack.machines
    ]
    sys.stdout.write(table(rows, ("MACHINE", "POWER", "ADDRESS", "ROLES", "PENDING")) + "\n")
