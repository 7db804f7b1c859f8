"""The table of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from essaim import __version__
from essaim.cli import (
    api,
    audit,
    autoscale,
    check,
    compare,
    config,
    console,
    controller,
    copy,
    demo,
    doctor,
    events,
    gateway,
    images,
    inventory,
    invites,
    keys,
    lab,
    leases,
    locks,
    machines,
    mine,
    mine_access,
    nodes,
    people,
    project,
    renting,
    runs,
    serve,
    sessions,
    snapshots,
    ssh_config,
    stacks,
    students,
    tokens,
    worker,
)
from essaim.cli.completion.command import completion

app = typer.Typer(
    name="essaim",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)

MAKE, USE, RENT, LEND = "Make machines", "Use machines", "Rent machines", "Lend machines"
LOOK, CARE = "Look", "Look after"

app.command(rich_help_panel=MAKE)(stacks.up)
app.command(rich_help_panel=MAKE)(stacks.plan)
app.command(rich_help_panel=MAKE)(stacks.down)
app.command(rich_help_panel=MAKE)(locks.lock)
app.add_typer(project.app, name="project", rich_help_panel=MAKE)
app.add_typer(students.app, name="students", rich_help_panel=MAKE)
app.command(rich_help_panel=USE)(machines.ssh)
app.command(rich_help_panel=USE)(machines.run)
app.command(rich_help_panel=USE)(copy.cp)
app.command("ssh-config", rich_help_panel=USE)(ssh_config.ssh_config)
app.command(rich_help_panel=USE)(console.console)
app.add_typer(snapshots.app, name="snapshot", rich_help_panel=USE)
app.command(rich_help_panel=USE)(compare.compare)
app.command(rich_help_panel=LOOK)(stacks.status)
app.command(rich_help_panel=LOOK)(locks.verify)
app.command(rich_help_panel=LOOK)(machines.logs)
app.command(rich_help_panel=LOOK)(inventory.inventory)
app.add_typer(runs.app, name="runs", rich_help_panel=LOOK)
app.add_typer(config.app, name="config", rich_help_panel=LOOK)
for command in (
    people.signup,
    people.login,
    people.logout,
    people.whoami,
    people.password,
    renting.rent,
    renting.extend,
    renting.release,
    leases.leases,
    events.events,
):
    app.command(rich_help_panel=RENT)(command)
mine.app.command(cls=mine_access.WithCommand)(mine_access.ssh)
mine.app.command()(mine_access.cp)
mine.app.command()(mine_access.key)
app.add_typer(mine.app, name="mine", rich_help_panel=RENT)
app.add_typer(sessions.app, name="sessions", rich_help_panel=RENT)
app.add_typer(tokens.app, name="tokens", rich_help_panel=RENT)
app.command(rich_help_panel=LEND)(serve.serve)
app.command(rich_help_panel=LEND)(api.api)
app.command(rich_help_panel=LEND)(controller.controller)
app.command(rich_help_panel=LEND)(gateway.gateway)
app.command(rich_help_panel=LEND)(worker.worker)
app.add_typer(autoscale.app, name="autoscale", rich_help_panel=LEND)
app.add_typer(nodes.app, name="nodes", rich_help_panel=LEND)
people.users.command()(invites.invite)
people.users.command()(invites.invites)
people.users.command()(invites.approve)
app.add_typer(people.users, name="users", rich_help_panel=LEND)
app.add_typer(people.projects, name="projects", rich_help_panel=LEND)
app.add_typer(audit.app, name="audit", rich_help_panel=LEND)
app.command(rich_help_panel=LEND)(demo.demo)
app.add_typer(images.app, name="image", rich_help_panel=CARE)
app.command(rich_help_panel=CARE)(doctor.doctor)
app.add_typer(lab.app, name="lab", rich_help_panel=CARE)
app.command(rich_help_panel=CARE)(inventory.adopt)
app.command(rich_help_panel=CARE)(check.check)
app.add_typer(keys.app, name="keys", rich_help_panel=CARE)
app.command(rich_help_panel=CARE)(completion)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"essaim {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    _quiet: stacks.Quiet = False,
    _verbose: stacks.Verbose = False,
) -> None:
    """Turn a description into real machines: clusters, labs, one computer or many.

    [bold]essaim up examples/slurm nodes=4[/bold] makes a cluster;
    [bold]essaim run slurm/controller -- srun -N4 hostname[/bold] uses it;
    [bold]essaim down slurm[/bold] removes it.

    Machines are named STACK/MACHINE everywhere.

    Somebody else's machines: [bold]essaim login NAME --server URL[/bold], then
    [bold]essaim rent --for 2h[/bold] prints the ssh command.

    Exit codes: 0 ok, 1 failed, 2 wrong usage or description, 3 something is
    missing on this computer or nobody is logged in, 4 partly done, 130 stopped
    by Ctrl-C.

    Colours are left out where output is no terminal, or when NO_COLOR is set.
    """
