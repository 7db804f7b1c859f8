"""`audit`: who did what, and whether that record was changed."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from essaim.cli.client import connected
from essaim.cli.output import print_json
from essaim.cli.stacks import Json
from essaim.cli.times import clock, seconds
from essaim.model.errors import RejectedError

app = typer.Typer(invoke_without_command=True)

#: Entries that are asked for at once.
SOME = 500


@app.callback()
def audit(
    context: typer.Context,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Nothing older than this: 30m, 2h, 1d …")
    ] = "1d",
    who: Annotated[str, typer.Option(metavar="NAME", help="One person: name or id.")] = "",
    as_json: Json = False,
) -> None:
    """Say who did what, from where and with which outcome, oldest first; for administrators.

    Log-ins and failed ones, rights, tokens, keys, enrolments, leases, and runs that
    a person began. Entries are kept for two years.

    [bold]essaim audit --since 7d --who ada[/bold]

    [bold]essaim audit verify[/bold]
    """
    if context.invoked_subcommand is not None:
        return
    begin = round((time.time() - seconds(since)) * 1000)
    with connected() as client:
        after = 0
        while True:
            found = client.get("/api/audit", since=begin, who=who, after=after, limit=SOME)
            for entry in found:
                _print(entry, as_json=as_json)
            if len(found) < SOME:
                return
            after = int(found[-1]["place"])


@app.command()
def verify(
    head: Annotated[
        str,
        typer.Option(
            metavar="HASH", help="Of the newest entry, noted earlier: it must still be there."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Say whether entries were changed or removed; exit code 1 when they were.

    Each entry's hash covers the one before it, so a change shows at its place. Who
    can write the database could compute the whole chain anew: note the head
    elsewhere (the log has it, too), and compare with --head.

    [bold]essaim audit verify --head 5d41…[/bold]
    """
    with connected() as client:
        found = client.get("/api/audit/verify")
        problem = found["problem"]
        if head and not problem and not _has(client, head):
            problem = f"no entry has the hash {head}: the trail was cut or written anew"
    if as_json:
        print_json({**found, "problem": problem})
    if problem:
        raise RejectedError(
            f"the audit trail was changed: {problem}",
            hint="compare with a backup of the database, and with the log lines of essaim.audit",
        )
    if not as_json:
        typer.echo(f"{found['entries']} entries, none changed; the newest is {found['head']}")


def _has(client: Any, head: str) -> bool:
    after = 0
    while found := client.get("/api/audit", after=after, limit=SOME):
        if any(entry["hash"] == head for entry in found):
            return True
        after = int(found[-1]["place"])
    return False


def _print(entry: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(entry) + "\n")
        return
    who = entry["name"] or entry["who"] or "-"
    sys.stdout.write(
        f"{clock(entry['at'])} {entry['outcome']:<8} {who:<12} {entry['action']:<14} "
        f"{entry['object'] or '-'} from {entry['address'] or '-'}\n"
    )
