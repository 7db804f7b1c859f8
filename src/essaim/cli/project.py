"""`project`: machines, their names and a playbook, from one file."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essaim.cli.output import duration, plan_lines, print_json, say, table
from essaim.cli.progress import Progress, on_terminal, shown
from essaim.cli.stacks import FAILED, INTERRUPTED, PARTLY, Json, Wait, control_plane, interruptible

if TYPE_CHECKING:
    from collections.abc import Callable

    from essaim.bootstrap import App
    from essaim.model.runs import Run
    from essaim.usecases.projects import Shown
    from essaim.usecases.stacks import StoredPlan

app = typer.Typer(
    help="""Machines, their names in DNS and a playbook, from one file.

    [bold]essaim project apply profan.yaml[/bold]

    The file lists containers under [bold]ct:[/bold] and virtual machines under
    [bold]vm:[/bold]; [bold]cluster:[/bold] names the site they are on, [bold]ansible:[/bold] the
    playbook, its tags and its extravars.  A project is a stack: `status`, `ssh`, `run` and `logs`
    work on its machines, which are called PROJECT/MACHINE.
    """,
    no_args_is_help=True,
)

File = Annotated[str, typer.Argument(metavar="FILE", help="The project's YAML file.")]
Name = Annotated[str, typer.Argument(metavar="PROJECT", help="Its name, as `project show` says.")]
Site = Annotated[
    str, typer.Option(metavar="SITE", help="Instead of the file's cluster: site/SITE.yaml.")
]
Called = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Instead of the group's or the file's name.")
]
Play = Annotated[
    bool | None,
    typer.Option("--play/--no-play", help="Play the playbook in any case, or in none."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before removing machines.")]


@app.command()
def apply(
    file: File,
    site: Site = "",
    name: Called = "",
    play: Play = None,
    yes: Yes = False,
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """Make the machines a project describes, name them, and play its playbook on them.

    Safe to repeat: machines that are there are left alone, and the playbook is played again only
    when it, its variables or its machines have changed.  A machine that fails is wholly undone.
    """
    from essaim.config.projects import compose_project
    from essaim.usecases import projects as use

    project = compose_project(file, site=site, name=name)
    with control_plane() as control:
        for line in use.left_alone(control, project.stack):
            say(f"  · {line}")
        outcome = _carry_out(
            control,
            project.stack.name,
            lambda: use.plan(control, project, play=play),
            yes=yes,
            wait=wait,
        )
    _end(outcome, as_json=as_json)


@app.command()
def plan(
    file: File, site: Site = "", name: Called = "", play: Play = None, as_json: Json = False
) -> None:
    """Say what `apply` would do, and why.  Changes nothing."""
    from essaim.config.projects import compose_project
    from essaim.plan.serial import plan_to_json
    from essaim.usecases import projects as use

    project = compose_project(file, site=site, name=name)
    with control_plane() as control:
        stored = use.plan(control, project, play=play)
        left = use.left_alone(control, project.stack)
    if as_json:
        print_json({"id": stored.id, "left": left, **plan_to_json(stored.plan)})
        return
    for line in left:
        say(f"  · {line}")
    _show_plan(stored)


@app.command("play")
def play_again(name: Name, wait: Wait = True, as_json: Json = False) -> None:
    """Play a project's playbook once more, as it was last applied."""
    from essaim.usecases import projects as use

    with control_plane() as control:
        plan_it = lambda: use.plan_play(control, name)  # noqa: E731 - what is planned, later
        outcome = _carry_out(control, name, plan_it, yes=True, wait=wait)
    _end(outcome, as_json=as_json)


@app.command()
def down(name: Name, yes: Yes = False, wait: Wait = True, as_json: Json = False) -> None:
    """Remove a project: its machines, their disks and their names in DNS.  The journal stays."""
    from essaim.usecases import projects as use

    with control_plane() as control:
        plan_it = lambda: use.plan_down(control, name)  # noqa: E731 - what is planned, later
        outcome = _carry_out(control, name, plan_it, yes=yes, wait=wait, ask=True)
    _end(outcome, as_json=as_json)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="[PROJECT]", help="All when absent.")] = "",
    as_json: Json = False,
) -> None:
    """Show projects: their machines, what DNS says of them, what was played on them."""
    from essaim.usecases import projects as use

    with control_plane() as control:
        found = [use.show(control, each) for each in ([name] if name else use.names(control))]
    if as_json:
        print_json(found)
        return
    if not found:
        say("no projects yet; make one with: essaim project apply FILE")
    for each in found:
        _show(each)


# -- how it is done ---------------------------------------------------------------------------


def _carry_out(
    control: App,
    name: str,
    plan_it: Callable[[], StoredPlan],
    *,
    yes: bool,
    wait: bool,
    ask: bool = False,
) -> dict[str, Any]:
    from essaim.model.errors import HeldError
    from essaim.usecases import stacks

    while True:
        _clear(control, name, wait=wait)
        stored = plan_it()
        if not stored.plan.changes:
            say(f"{name}: nothing to change")
            return {"project": name, "changes": 0, "state": "done", "exit_code": 0}
        _show_plan(stored)
        _confirm(stored, yes=yes, ask=ask)
        progress = Progress(stored.plan, live=on_terminal())
        control.watch = progress
        try:
            run_id = stacks.apply(control, stored)
        except HeldError:
            # Somebody was quicker between our look and our start.
            if not wait:
                raise
            continue
        with interruptible(control), shown(progress):
            run = stacks.follow(control, run_id)
        return _conclude(run, progress)


def _clear(control: App, name: str, *, wait: bool) -> None:
    """Wait until nobody else works on the project, saying who does."""
    from essaim.model.errors import HeldError
    from essaim.usecases import stacks

    said = False
    while True:
        try:
            stacks.give_way(control, name)
        except HeldError as held:
            if not wait:
                raise
            if not said:
                say(f"essaim: {held.what}; waiting for it (Ctrl-C leaves)")
                said = True
            time.sleep(0.5)
        else:
            return


def _confirm(stored: StoredPlan, *, yes: bool, ask: bool) -> None:
    losing = [c for c in stored.plan.changes if c.verb in ("unhost", "rehost", "reopen")]
    if yes or not (losing or ask):
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody here to ask: say --yes to remove machines")
    typer.confirm("The disks of removed machines are lost. Go on?", abort=True, err=True)


def _conclude(run: Run, progress: Progress) -> dict[str, Any]:
    from essaim.model.runs import RunState

    took = time.monotonic() - progress.began
    error = run.error.replace("essaim up again", "the same command")  # a project is a stack
    outcome = {
        "project": run.subject, "run": run.id, "state": run.state.value,
        "changes": progress.total, "done": progress.done,
        "seconds": round(took, 2), "error": error, "exit_code": 0,
    }  # fmt: skip
    if run.state is RunState.DONE:
        say(f"{run.subject}: done in {duration(took)}  (run {run.id})")
    elif run.state.over or run.state is RunState.STUCK:
        say(f"{run.subject}: {error}")
        say(f"  → essaim runs show {run.id} tells more")
        outcome["exit_code"] = PARTLY if progress.done else FAILED
    else:
        say(f"{run.subject}: stopped; nothing is lost. Go on with the same command (run {run.id})")
        outcome["exit_code"] = INTERRUPTED
    return outcome


def _end(outcome: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(outcome)
    sys.exit(outcome["exit_code"])


def _show_plan(stored: StoredPlan) -> None:
    if not stored.plan.changes:
        say(f"{stored.plan.stack}: nothing to change")
        return
    seconds = stored.plan.seconds
    time_said = "no estimate yet" if seconds is None else f"about {duration(seconds)}"
    say(f"{stored.plan.stack}: {len(stored.plan.changes)} to change; {time_said}")
    for line in plan_lines(stored.plan):
        say(line)


def _show(project: Shown) -> None:
    plays = f", {project.playbook} for {project.group}" if project.playbook else ""
    say(f"{project.name} on {project.site} ({project.source}{plays})")
    rows = [
        (
            each.machine,
            each.power,
            each.address,
            each.hostname or "-",
            each.named or "-",
            ("yes" if each.played else "no") if project.playbook else "-",
        )
        for each in project.machines
    ]
    headings = ("MACHINE", "POWER", "ADDRESS", "HOSTNAME", "DNS", "PLAYED")
    sys.stdout.write(table(rows, headings) + "\n")
