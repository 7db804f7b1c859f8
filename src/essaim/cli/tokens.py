"""`tokens`: let programs ask in your name."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from essaim.cli.client import connected, read_json
from essaim.cli.output import print_json, table
from essaim.cli.stacks import Json
from essaim.cli.times import clock, seconds
from essaim.cli.tongue import tell

app = typer.Typer()


@app.callback(invoke_without_command=True)
def tokens(context: typer.Context, as_json: Json = False) -> None:
    """List the API tokens of your programs, make or revoke one.

    [bold]essaim tokens create nightly --scope rent[/bold]

    [bold]ESSAIM_TOKEN=essaim_… essaim rent --for 2h[/bold]

    Scopes: read sees what you see; rent also rents, extends and releases;
    operate and admin do what an operator or an administrator may.  No token makes
    tokens, changes passwords or ends sessions.
    """
    if context.invoked_subcommand is None:
        list_tokens(as_json=as_json)


@app.command("list")
def list_tokens(as_json: Json = False) -> None:
    """List your tokens and when each was last used; never the secret."""
    with connected() as client:
        found = list(client.pages("/api/tokens"))
    if as_json:
        print_json(found)
        return
    rows = [_row(each) for each in sorted(found, key=lambda each: str(each["created_at"]))]
    sys.stdout.write(table(rows, ("TOKEN", "NAME", "SCOPE", "UNTIL", "LAST USED")) + "\n")


@app.command("create")
def create_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for.")],
    scope: Annotated[
        str, typer.Option(metavar="SCOPE", help="read, rent, operate or admin.")
    ] = "read",
    lasts: Annotated[
        str, typer.Option("--for", metavar="TIME", help="Until it ends: 12h, 30d; at most 365d.")
    ] = "90d",
    as_json: Json = False,
) -> None:
    """Make a token for a program; it is printed once, alone on standard output.

    [bold]essaim tokens create nightly --scope rent --for 30d[/bold]
    """
    body = {"name": name, "scope": scope, "expires_in": seconds(lasts)}
    with connected() as client:
        made = read_json(client.ask("POST", "/api/tokens", json=body))
    if as_json:
        print_json(made)
        return
    sys.stdout.write(f"{made['token']}\n")
    tell("tokens.once")


@app.command("revoke")
def revoke_token(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="As essaim tokens shows it.")],
) -> None:
    """Revoke a token: the program that has it is refused from now on.

    [bold]essaim tokens revoke t-0f3a9c81d2e4[/bold]
    """
    with connected() as client:
        client.ask("DELETE", f"/api/tokens/{token}")
    tell("tokens.revoked", id=token)


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    return (
        found["id"],
        found["name"],
        found["scope"],
        clock(found["expires_at"]),
        clock(found["used_at"]),
    )
