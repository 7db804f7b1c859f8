"""`sessions`: where somebody is logged in, and the end of it."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from essaim.cli.client import connected
from essaim.cli.output import print_json, table
from essaim.cli.stacks import Json
from essaim.cli.times import clock
from essaim.cli.tongue import said, tell

app = typer.Typer()


@app.callback(invoke_without_command=True)
def sessions(context: typer.Context, as_json: Json = False) -> None:
    """List where you are logged in, or end a session.

    A session ends 14 days after it was last used, and 90 days after the login.

    [bold]essaim sessions[/bold]

    [bold]essaim sessions end 0f3a9c81d2e4[/bold]
    """
    if context.invoked_subcommand is None:
        list_sessions(as_json=as_json)


@app.command("list")
def list_sessions(as_json: Json = False) -> None:
    """List where you are logged in; * is this session."""
    with connected() as client:
        found = list(client.pages("/api/sessions"))
    if as_json:
        print_json(found)
        return
    rows = [_row(each) for each in sorted(found, key=lambda each: str(each["created_at"]))]
    sys.stdout.write(table(rows, ("", "SESSION", "SINCE", "LAST USED", "FROM", "WITH")) + "\n")


@app.command("end")
def end_session(
    session: Annotated[
        str, typer.Argument(metavar="[SESSION]", help="As essaim sessions shows it.")
    ] = "",
    everywhere: Annotated[
        bool, typer.Option("--all", help="All of them, this one too: log in again afterwards.")
    ] = False,
) -> None:
    """End a session at once, for instance on a computer that you lost.

    [bold]essaim sessions end --all[/bold]
    """
    if bool(session) == everywhere:
        raise typer.BadParameter(said("sessions.which"))
    with connected() as client:
        ids = [session]
        if everywhere:
            found = sorted(client.pages("/api/sessions"), key=lambda each: bool(each["current"]))
            ids = [str(each["id"]) for each in found]  # this one last
        for each in ids:
            client.ask("DELETE", f"/api/sessions/{each}")
    tell("sessions.ended", count=len(ids))


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    return (
        "*" if found["current"] else "",
        found["id"],
        clock(found["created_at"]),
        clock(found["used_at"]),
        found["address"] or "-",
        found["agent"] or "-",
    )
