"""`project`: machines, their names and a playbook, from one file."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from essaim.cli.carrying import carry_out, end, show_plan
from essaim.cli.output import print_json, say, table
from essaim.cli.stacks import Json, Wait, Yes, control_plane, power_style

if TYPE_CHECKING:
    from essaim.usecases.projects import Shown

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
        outcome = carry_out(
            control,
            project.stack.name,
            partial(use.plan, control, project, play=play),
            yes=yes,
            wait=wait,
            hints=True,
            kind="project",
        )
    end(outcome, as_json=as_json)


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
    show_plan(stored)


@app.command("play")
def play_again(name: Name, wait: Wait = True, as_json: Json = False) -> None:
    """Play a project's playbook once more, as it was last applied."""
    from essaim.usecases import projects as use

    with control_plane() as control:
        plan_it = partial(use.plan_play, control, name)
        outcome = carry_out(control, name, plan_it, yes=True, wait=wait, kind="project")
    end(outcome, as_json=as_json)


@app.command()
def down(name: Name, yes: Yes = False, wait: Wait = True, as_json: Json = False) -> None:
    """Remove a project: its machines, their disks and their names in DNS.  The journal stays."""
    from essaim.usecases import projects as use

    with control_plane() as control:
        plan_it = partial(use.plan_down, control, name)
        outcome = carry_out(control, name, plan_it, yes=yes, wait=wait, kind="project")
    end(outcome, as_json=as_json)


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
    sys.stdout.write(table(rows, headings, style=power_style) + "\n")
