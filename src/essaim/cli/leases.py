"""`leases`: what is rented."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from essaim.cli.access import public_key, remembered, way_in
from essaim.cli.client import Client, connected
from essaim.cli.output import print_json, table
from essaim.cli.renting import OVER, check_lease, estimate
from essaim.cli.stacks import Json
from essaim.cli.times import clock, left, length, moment
from essaim.cli.tongue import said, tell


def leases(
    lease: Annotated[
        str | None, typer.Argument(metavar="[LEASE]", help="Show this one in full.")
    ] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Everybody's, for operators.")] = False,
    past: Annotated[bool, typer.Option("--past", help="Also those that are over.")] = False,
    as_json: Json = False,
) -> None:
    """List your leases, or show one in full: machines, place in the queue, visits.

    [bold]essaim leases[/bold]

    [bold]essaim leases l-3k9x2m7q[/bold]
    """
    with connected() as client:
        if lease:
            check_lease(lease)
            _one(client, lease, as_json=as_json)
            return
        query = {"all": "true"} if everybody else {}
        found = [each for each in client.pages("/api/leases", **query) if past or _open(each)]
        people = _people(client) if everybody and not as_json else {}
    if as_json:
        print_json(found)
        return
    if not found:
        tell("leases.none")
        return
    rows = [tuple(_row(each, people, everybody=everybody)) for each in found]
    headings = said("leases.headings").split("|")
    if not everybody:
        headings.pop()
    sys.stdout.write(table(rows, headings) + "\n")


def _open(lease: dict[str, Any]) -> bool:
    return lease["state"] not in ("ended", "failed")


def _row(lease: dict[str, Any], people: dict[str, str], *, everybody: bool) -> Iterator[str]:
    yield lease["id"]
    yield said(f"lease.{lease['state']}")
    yield str(lease["wish"]["count"])
    yield clock(lease["asked_at"])
    yield clock(lease["ended_at"] or lease["expires_at"])
    yield "-" if lease["state"] in OVER else left(lease["expires_at"])
    if everybody:
        yield people.get(lease["user"], lease["user"])


def _people(client: Client) -> dict[str, str]:
    return {person["id"]: person["name"] for person in client.pages("/api/users")}


def _one(client: Client, lease: str, *, as_json: bool) -> None:
    found = client.get(f"/api/leases/{lease}")
    visits = list(client.pages(f"/api/leases/{lease}/visits"))
    before = remembered(lease)
    way = None
    if found.get("access"):
        way = way_in(found, before.identity if before else public_key("")[1])
    commands = (
        [shlex.join(way.command(n)) for n in range(1, len(found["nodes"]) + 1)] if way else []
    )
    if as_json:
        print_json({**found, "visits": visits, "ssh": commands})
        return
    for line in _lines(found):
        sys.stdout.write(line + "\n")
    for command in commands:
        sys.stdout.write(f"  {command}\n")
    if visits:
        rows = [_visit(each) for each in visits]
        headings = said("visits.headings").split("|")
        sys.stdout.write("\n" + table(rows, headings) + "\n")


def _lines(lease: dict[str, Any]) -> Iterator[str]:
    reason = f" ({lease['reason']})" if lease["reason"] else ""
    yield f"{lease['id']}  {said('lease.' + lease['state'])}{reason}"
    if lease["state"] == "queued":
        position = lease["position"] or "?"
        yield "  " + said("rent.queued", lease=lease["id"], position=position, eta=estimate(lease))
    wish = lease["wish"]
    wanted = [f"{wish['count']} machine(s) of {wish['cores']} cores", f"{wish['memory']} MiB"]
    wanted += [wish["site"]] if wish["site"] else []
    wanted += [f"{name}={value}" for name, value in wish["labels"].items()]
    yield "  " + ", ".join(wanted)
    yield "  " + said(
        "lease.times", asked=clock(lease["asked_at"]), until=clock(lease["expires_at"])
    )
    for number, machine in enumerate(lease["machines"], 1):
        yield f"  {number}. {machine['name']}  {machine['site'] or '-'}  {machine['state']}"


def _visit(visit: dict[str, Any]) -> tuple[str, ...]:
    began, ended = moment(visit["opened_at"]), moment(visit["closed_at"])
    took = length(ended - began) if began is not None and ended is not None else "-"
    return (
        clock(visit["opened_at"]),
        visit.get("refused") or took,
        visit["client"],
        visit["key"],
        str(visit["bytes_in"]),
        str(visit["bytes_out"]),
    )
