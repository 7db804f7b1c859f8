"""`users invite`, `users invites`, `users approve`: who may have an account."""

from __future__ import annotations

import sys
from typing import Annotated
from urllib.parse import quote

import typer

from essaim.cli.client import connected, read_json
from essaim.cli.output import print_json, say, table
from essaim.cli.people import Account
from essaim.cli.stacks import Json
from essaim.cli.times import clock, length, seconds


def invite(
    uses: Annotated[int, typer.Option(min=1, help="How many people may sign up with it.")] = 1,
    lasting: Annotated[str, typer.Option("--for", metavar="TIME", help="1h, 7d …")] = "7d",
    project: Annotated[str, typer.Option(help="Their accounts belong to it.")] = "",
    teaches: Annotated[
        str, typer.Option(metavar="ROSTER", help="Their accounts teach this roster.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Make a code with which people sign up, for administrators; shown this once.

    A right for somebody who has no account yet travels with the code, never with a name that
    another could take first.

    [bold]essaim users invite --uses 30 --for 1d --project compilers[/bold]

    [bold]essaim users invite --teaches promo[/bold]
    """
    lasts = seconds(lasting)
    body = {"uses": uses, "seconds": lasts, "project": project, "roster": teaches}
    with connected() as client:
        made = client.post("/api/invites", body)
    if as_json:
        print_json({**made, "uses": uses, "seconds": lasts})
        return
    people = "one person" if uses == 1 else f"up to {uses} people"
    say(f"for {people}, within {length(lasts)} (essaim users invites --revoke {made['id']}):")
    sys.stdout.write(f"essaim signup NAME --server {client.server} --invite {made['code']}\n")


def invites(
    revoke: Annotated[
        str, typer.Option(metavar="ID", help="Let nobody sign up with this one any more.")
    ] = "",
    as_json: Json = False,
) -> None:
    """List the codes with which somebody may still sign up, or revoke one; for administrators.

    [bold]essaim users invites --revoke i-5c1d9e0a77[/bold]
    """
    with connected() as client:
        if revoke:
            client.ask("DELETE", f"/api/invites/{quote(revoke, safe='')}", repeatable=False)
        found = list(client.pages("/api/invites"))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["id"],
            str(each["uses"]),
            clock(each["expires_at"]),
            each["project"] or "-",
            each["roster"] or "-",
            each["by"],
        )
        for each in found
    ]
    headings = ("INVITE", "USES", "UNTIL", "PROJECT", "TEACHES", "BY")
    sys.stdout.write(table(rows, headings) + "\n")


def approve(name: Account, as_json: Json = False) -> None:
    """Let somebody log in whose account waits for approval; for administrators.

    [bold]essaim users approve ada[/bold]
    """
    with connected() as client:
        path = f"/api/users/{quote(name, safe='')}/approve"
        person = read_json(client.ask("POST", path, repeatable=False))
    if as_json:
        print_json(person)
        return
    say(f"{person['name']} ({person['id']}) may log in")
