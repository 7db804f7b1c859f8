"""`runs`: what was done, and what to do about what is stuck."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from essaim.cli.carrying import FAILED
from essaim.cli.output import print_json, say, table
from essaim.cli.stacks import Json, control_plane

app = typer.Typer(help="List runs, look into one, resume or abandon it.", no_args_is_help=False)

RunId = Annotated[str, typer.Argument(metavar="RUN", help="As listed by `essaim runs`.")]


@app.callback(invoke_without_command=True)
def runs(
    context: typer.Context,
    limit: Annotated[int, typer.Option("-n", help="How many, newest first.")] = 20,
    as_json: Json = False,
) -> None:
    """List the newest runs."""
    if context.invoked_subcommand:
        return
    from essaim.usecases import runs as use

    with control_plane() as control:
        found = use.recent(control, limit=limit)
    if as_json:
        print_json(found)
        return
    rows = [
        (r.id, _when(r.created_at), r.workflow, r.subject, r.state.value, _line(r.error or r.note))
        for r in found
    ]
    headings = ("RUN", "WHEN", "WHAT", "ON", "STATE", "NOTE")
    sys.stdout.write(table(rows, headings) + "\n")


@app.command()
def show(run_id: RunId, as_json: Json = False) -> None:
    """Show a run: its steps, its children, its errors."""
    from essaim.usecases import runs as use

    with control_plane() as control:
        detail = use.show(control, run_id)
    if as_json:
        print_json(detail)
        return
    run = detail.run
    say(f"{run.id}  {run.workflow} {run.subject}  {run.state.value}  asked by {run.who or '?'}")
    if run.error or (run.note and not run.state.over):
        say(run.error or run.note)
    steps = [
        (s.name, s.state.value, str(s.attempts), _took(s.started_at, s.finished_at), _line(s.error))
        for s in detail.steps
    ]
    sys.stdout.write(table(steps, ("STEP", "STATE", "TRIES", "TOOK", "ERROR")) + "\n")
    if detail.children:
        rows = [(c.id, c.state.value, _line(c.error or c.note)) for c in detail.children]
        sys.stdout.write("\n" + table(rows, ("CHILD", "STATE", "NOTE")) + "\n")


@app.command()
def resume(run_id: RunId, as_json: Json = False) -> None:
    """Let a stuck run go on from the step that failed."""
    from essaim.usecases import runs as use
    from essaim.usecases.stacks import follow

    with control_plane() as control:
        run = follow(control, use.resume(control, run_id).id)
    if as_json:
        print_json(run)
    else:
        say(f"{run.id} {run.subject}: {run.state.value}{': ' + run.error if run.error else ''}")
    sys.exit(0 if run.state.value == "done" else FAILED)


@app.command()
def abandon(run_id: RunId) -> None:
    """Give a run up as it is, with all below it.  Nothing is undone."""
    from essaim.usecases import runs as use

    with control_plane() as control:
        use.abandon(control, run_id)
    say(f"{run_id} abandoned")


def _when(milliseconds: int) -> str:
    return time.strftime("%d %b %H:%M:%S", time.localtime(milliseconds / 1000))


def _took(began: int, ended: int | None) -> str:
    return f"{(ended - began) / 1000:.2f} s" if ended else ""


def _line(text: Any) -> str:
    return str(text or "").split("\n", 1)[0]
