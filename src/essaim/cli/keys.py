"""`keys`: which keys the control plane signs with, and new ones in their place."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Annotated

import typer

from essaim.cli.carrying import PARTLY
from essaim.cli.output import print_json, say, table
from essaim.cli.stacks import Json

app = typer.Typer()

#: Which processes hold a key.
WHERE = {"control": "where a controller runs", "lease": "where a gateway runs"}


@app.callback(invoke_without_command=True)
def keys(context: typer.Context, as_json: Json = False) -> None:
    """List the keys that the control plane signs with, or replace them.

    [bold]essaim keys[/bold] shows names and ages, never a secret.

    [bold]essaim keys rotate[/bold] replaces them; nobody is logged out.

    Runs where the control plane does: it needs ESSAIM_DATABASE and ESSAIM_KEYS.
    """
    if context.invoked_subcommand is None:
        list_keys(as_json=as_json)


@app.command("list")
def list_keys(as_json: Json = False) -> None:
    """List the keys: what each is for, its name, since when, and whether it still counts."""
    from essaim.bootstrap import App
    from essaim.usecases.signing_keys import listed

    plane = App(kind="check")
    try:
        found = list(listed(plane))
    finally:
        plane.close()
    if as_json:
        print_json([asdict(each) for each in found])
        return
    rows = [(each.kind, each.kid, each.state, _day(each.since), each.place) for each in found]
    sys.stdout.write(table(rows, ("KIND", "KEY", "STATE", "SINCE", "WHERE")) + "\n")


@app.command("rotate")
def rotate_keys(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KIND]...",
            help="access, inner, control, lease; of the first two those here if none.",
        ),
    ] = None,
    forget_previous: Annotated[
        bool,
        typer.Option(
            "--forget-previous", help="Refuse the old keys at once, because somebody has them."
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Leave machines behind that do not answer: they must join again."
        ),
    ] = False,
) -> None:
    """Replace the keys with new ones, while everything runs.

    Every process sees the new keys by itself within seconds.  What the old ones
    signed is believed for 16 minutes more, so nobody is logged out and no request
    fails.  With --forget-previous it is refused at once: programs that do not ask
    for a new access token by themselves must.

    control and lease are SSH keys: every node, or the account of every lease, is
    given the new one before the old one goes.  Gateways hold lease, controllers
    control.  Where their folders are apart, type it in turn where it says: each
    time it goes as far as the keys there let it.

    After an upgrade from a release that kept the keys in the database, this moves
    them out of it: run it once no process of that release is left.

    [bold]essaim keys rotate[/bold]

    [bold]essaim keys rotate control[/bold]

    Exit codes: 0 replaced, 1 machines do not answer, 4 to be gone on with elsewhere.
    """
    from essaim.bootstrap import App
    from essaim.usecases import ssh_keys
    from essaim.usecases.signing_keys import rotate

    chosen = kinds or []
    ssh = [name for name in chosen if name in ssh_keys.ROTATED]
    plane = App(kind="check")
    try:
        if not ssh or len(ssh) < len(chosen):
            rotate(plane, [name for name in chosen if name not in ssh], forget=forget_previous)
        rotated = {name: ssh_keys.rotate(plane, name, force=force) for name in ssh}
    finally:
        plane.close()
    for name, done in rotated.items():
        if done.waits_for:
            say(f"{name}: go on {WHERE[done.waits_for]}: essaim keys rotate {name}")
        else:
            say(f"{name}: {done.reached} machines know the new key")
    if any(done.waits_for for done in rotated.values()):
        sys.exit(PARTLY)
    say("the keys are replaced; see them with: essaim keys")


def _day(since: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(since)) if since else "-"
