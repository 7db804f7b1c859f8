"""`snapshot`: keep a machine's disk as it is, and go back to it."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from essaim.cli.asking import agree
from essaim.cli.output import print_json, say, table
from essaim.cli.stacks import Json, control_plane

app = typer.Typer(
    help="""Keep a machine's disk as it is now, and go back to it later.

    [bold]essaim snapshot make lab/one before-upgrade[/bold] keeps it;
    [bold]essaim snapshot restore lab/one before-upgrade[/bold] goes back.

    A snapshot is a part of the machine's own disk: it goes with the machine, and
    takes space as the disk changes.  It holds the disk, not what runs: a restored
    machine is off, and [bold]essaim up[/bold] starts it and applies its roles again.""",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="STACK/MACHINE")]
Label = Annotated[str, typer.Argument(metavar="LABEL", help="As `list` shows it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command()
def make(
    machine: Name,
    label: Annotated[
        str, typer.Argument(metavar="[LABEL]", help="A word of yours; the time when absent.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Keep the disk as it is now.  A machine that runs is halted for some seconds, and goes on.

    [bold]essaim snapshot make slurm/controller before-upgrade[/bold]
    """
    from essaim.usecases import snapshots as use

    with control_plane() as control:
        name, made = use.make(control, machine, label)
    if as_json:
        print_json({"machine": str(name), "label": made})
        return
    say(f"{name}: kept as {made}; go back with: essaim snapshot restore {name} {made}")


@app.command("list")
def list_snapshots(machine: Name, as_json: Json = False) -> None:
    """List the snapshots of a machine, oldest first."""
    from essaim.usecases import snapshots as use

    with control_plane() as control:
        name, found = use.list_all(control, machine)
    if as_json:
        print_json(found)
        return
    if not found:
        say(f"{name} has none yet; make one with: essaim snapshot make {name}")
        return
    rows = [
        (s.label, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(s.made_at)), s.power.value)
        for s in found
    ]
    sys.stdout.write(table(rows, ("SNAPSHOT", "MADE", "MACHINE WAS")) + "\n")


@app.command()
def restore(machine: Name, label: Label, yes: Yes = False, as_json: Json = False) -> None:
    """Go back to a snapshot: what was written to the disk since is lost, and the machine is off.

    Start it, and apply its roles again, with [bold]essaim up[/bold].
    """
    from essaim.usecases import snapshots as use

    agree(f"What {machine} wrote to its disk since {label} is lost. Go on?", yes=yes)
    with control_plane() as control:
        name, again = use.restore(control, machine, label)
    if as_json:
        print_json({"machine": str(name), "label": label, "power": "off"})
        return
    say(f"{name}: as it was at {label}, and off; start it with: {again}")


@app.command()
def drop(machine: Name, label: Label, as_json: Json = False) -> None:
    """Forget a snapshot and free its space; the disk stays as it is now.  Nothing if it is gone."""
    from essaim.usecases import snapshots as use

    with control_plane() as control:
        name = use.drop(control, machine, label)
    if as_json:
        print_json({"machine": str(name), "label": label})
        return
    say(f"{name}: {label} is forgotten")
