"""The table of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from essaim import __version__
from essaim.cli import config, demo, doctor, images, machines, runs, serve, stacks

app = typer.Typer(
    name="essaim",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)

MAKE, USE, LEND = "Make machines", "Use machines", "Lend machines"
LOOK, CARE = "Look", "Look after"

app.command(rich_help_panel=MAKE)(stacks.up)
app.command(rich_help_panel=MAKE)(stacks.plan)
app.command(rich_help_panel=MAKE)(stacks.down)
app.command(rich_help_panel=USE)(machines.ssh)
app.command(rich_help_panel=USE)(machines.run)
app.command(rich_help_panel=LOOK)(stacks.status)
app.command(rich_help_panel=LOOK)(machines.logs)
app.add_typer(runs.app, name="runs", rich_help_panel=LOOK)
app.add_typer(config.app, name="config", rich_help_panel=LOOK)
app.command(rich_help_panel=LEND)(serve.serve)
app.command(rich_help_panel=LEND)(demo.demo)
app.add_typer(images.app, name="image", rich_help_panel=CARE)
app.command(rich_help_panel=CARE)(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"essaim {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Turn a description into real machines: clusters, labs, one computer or many.

    [bold]essaim up examples/slurm nodes=4[/bold] makes a cluster;
    [bold]essaim run slurm/controller -- srun -N4 hostname[/bold] uses it;
    [bold]essaim down slurm[/bold] removes it.

    Machines are named STACK/MACHINE everywhere.

    Exit codes: 0 ok, 1 failed, 2 wrong usage or description, 3 something is missing on this
    computer, 4 partly done, 130 stopped by Ctrl-C.
    """
