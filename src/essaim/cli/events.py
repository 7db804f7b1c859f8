"""`events`: what happened, and what is happening."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from essaim.cli.client import Client, LoginError, UnreachableError, connected
from essaim.cli.output import say
from essaim.cli.stacks import Json
from essaim.cli.times import clock, moment, seconds
from essaim.cli.tongue import said

#: Seconds before a stream that broke is opened again.
PAUSE = 2.0


def events(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes; Ctrl-C ends it.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="The whole fleet, for operators.")
    ] = False,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Nothing older than this: 30m, 2h, 1d …")
    ] = "",
    as_json: Json = False,
) -> None:
    """Say what happened to your leases, oldest first: a line, or a JSON document, each.

    [bold]essaim events --follow[/bold]

    [bold]essaim events --all --json | jq 'select(.urgent)'[/bold]
    """
    begin = time.time() - seconds(since) if since else 0.0
    with connected() as client:
        last = 0
        while True:
            for event in _stream(client, last, everything=everything, follow=follow):
                last = int(event["id"])
                if (moment(event["at"]) or begin) >= begin:
                    _print(event, as_json=as_json)
            if not follow:
                return
            time.sleep(PAUSE)


def _stream(
    client: Client, last: int, *, everything: bool, follow: bool
) -> Iterator[dict[str, Any]]:
    """What the server tells after the last event; ends when it does, or when it breaks off."""
    query = {"all": "true"} if everything else {}
    if not follow:
        query["follow"] = "false"
    try:
        with client.stream("/api/events", {"Last-Event-ID": str(last)}, **query) as answer:
            yield from _parsed(answer.iter_lines())
    except LoginError:
        raise
    except UnreachableError as error:
        if not follow:
            raise
        say(f"essaim: {error.what}; {said('server.again')}")


def _parsed(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    data, number = "", ""
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data += value
        elif name == "id":
            number = value
        elif not line:
            if data and number:
                yield {**json.loads(data), "id": int(number)}
            data, number = "", ""


def _print(event: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(event) + "\n")
    else:
        about = event.get("lease") or event.get("node") or "-"
        mark = "!" if event.get("urgent") else " "
        sys.stdout.write(
            f"{clock(event['at'])} {mark} {event['kind']:<16} {about:<12} {event['text']}\n"
        )
    sys.stdout.flush()
