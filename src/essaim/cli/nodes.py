"""`nodes`: the machines of a fleet, and how others join."""

from __future__ import annotations

import sys
from typing import Annotated, Any
from urllib.parse import quote

import typer

from essaim.cli.asking import agree
from essaim.cli.client import Client, connected
from essaim.cli.joining import agent_digest, authority_pin, check_clear, join_line
from essaim.cli.output import print_json, say, table
from essaim.cli.renting import labels
from essaim.cli.stacks import Json, control_plane
from essaim.cli.times import clock, length, seconds
from essaim.cli.try_fleet import MOST, resize
from essaim.model.errors import UnknownError
from essaim.model.spelling import meant

app = typer.Typer()

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Its name, or its id: n-…")]


@app.callback(invoke_without_command=True)
def nodes(context: typer.Context, as_json: Json = False) -> None:
    """List the machines of the fleet, look after them, let others join.

    [bold]essaim nodes[/bold]

    [bold]essaim nodes enrol --uses 30 --for 1d --site room-12[/bold]

    [bold]essaim nodes drain pc-12-03[/bold]

    [bold]essaim nodes try 5[/bold] with [bold]essaim serve --try[/bold]
    """
    if context.invoked_subcommand is None:
        show_all(as_json=as_json)


@app.command("list")
def show_all(as_json: Json = False) -> None:
    """List the fleet by name."""
    with connected() as client:
        found = list(client.pages("/api/nodes"))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            node["name"],
            node["id"],
            _state(node),
            node["site"] or "-",
            str(node["cores"]),
            str(node["memory"]),
            _labels(node),
            node["lease"] or "-",
        )
        for node in found
    ]
    headings = ("NODE", "ID", "STATE", "SITE", "CORES", "MIB", "LABELS", "LEASE")
    sys.stdout.write(table(rows, headings) + "\n")
    if not found:
        say("no machine has joined yet; essaim nodes enrol prints the line that makes one join")


@app.command()
def show(node: NodeName, as_json: Json = False) -> None:
    """Show one machine in full."""
    with connected() as client:
        found = _find(client, node)
    if as_json:
        print_json(found)
        return
    reach = "tunnel" if found["tunnel"] else f"{found['address'] or '-'} port {found['port']}"
    lines = [
        f"{found['name']} ({found['id']})  {_state(found)}",
        f"  {found['cores']} cores, {found['memory']} MiB, labels {_labels(found)}",
        f"  site {found['site'] or '-'}",
        f"  reached by {reach}",
        f"  load {found['load']:.2f}, last heartbeat {clock(found['beat_at'])}",
        f"  last good check {clock(found['checked_at'])}, {found['failures']} failed since",
    ]
    lines += [f"  lease {found['lease']}"] if found["lease"] else []
    lines += [f"  because: {found['reason']}"] if found["reason"] else []
    sys.stdout.write("\n".join(lines) + "\n")


@app.command()
def drain(node: NodeName, as_json: Json = False) -> None:
    """Let a machine serve its lease to the end and then no more, for operators."""
    _act(node, "drain", {"on": True}, as_json=as_json)


@app.command()
def undrain(node: NodeName, as_json: Json = False) -> None:
    """Let a drained machine serve again, for operators."""
    _act(node, "drain", {"on": False}, as_json=as_json)


@app.command()
def readmit(node: NodeName, as_json: Json = False) -> None:
    """Have a lost or quarantined machine cleaned, so that it may serve again, for operators.

    Look first why it was quarantined: essaim nodes show NODE
    """
    _act(node, "readmit", {}, as_json=as_json)


@app.command()
def remove(
    node: NodeName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Forget a machine that has no lease, for administrators; its agent is refused from then on.

    On the machine itself, `python3 agent.py uninstall` takes everything away again.
    """
    with connected() as client:
        found = _find(client, node)
        agree(f"Forget {found['name']} ({found['id']})?", yes=yes)
        client.ask("DELETE", f"/api/nodes/{found['id']}", repeatable=False)
    if as_json:
        print_json({"id": found["id"], "removed": True})
        return
    say(f"{found['name']} ({found['id']}) is forgotten")


@app.command()
def enrol(
    uses: Annotated[int, typer.Option(min=1, help="How many machines may join with it.")] = 1,
    lasting: Annotated[str, typer.Option("--for", metavar="TIME", help="1h, 1d …")] = "1h",
    site: Annotated[str, typer.Option(help="Where they are.")] = "",
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="May be repeated.")
    ] = None,
    tunnel: Annotated[
        bool, typer.Option("--tunnel", help="Nothing can dial in to them: they dial out.")
    ] = False,
    approval: Annotated[
        bool, typer.Option("--approve", help="They wait for [bold]nodes approve[/bold].")
    ] = False,
    insecure_http: Annotated[
        bool, typer.Option("--insecure-http", help="Allow http, where nobody can listen.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the line that makes a machine join, for administrators.

    Paste it on each machine, as root.  The token in it is shown this once.  The
    line names the agent by its SHA-256 and, when the server says which authority
    signs for it, that one: a machine that is shown others installs nothing.

    [bold]essaim nodes enrol --uses 30 --for 1d --site room-12 --label gpu=no[/bold]
    """
    lasts = seconds(lasting)
    body = {"uses": uses, "seconds": lasts, "site": site, "labels": labels(label)}
    if approval:
        body["approve"] = True
    with connected() as client:
        more = check_clear(client.server, allowed=insecure_http)
        agent, pin = agent_digest(client), authority_pin(client)
        token = client.post("/api/enrolments", body)["token"]
    more += ["--ca-pin", pin] if pin else []
    more += ["--tunnel"] if tunnel else []
    line = join_line(client.server, token, agent, more)
    if as_json:
        print_json({"token": token, "line": line, "uses": uses, "seconds": lasts})
        return
    machines = "one machine" if uses == 1 else f"each of up to {uses} machines"
    say(f"on {machines}, within {length(lasts)}, as root:")
    sys.stdout.write(line + "\n")
    if not tunnel:
        say("add --tunnel where nothing can dial in")
    if client.own_authority and not pin:
        say(f"machines must trust it by themselves: {client.server}/ca.pem names no authority")
    if approval:
        say("essaim nodes approve NODE, once it has joined")


@app.command()
def enrolments(
    revoke: Annotated[
        str, typer.Option(metavar="ID", help="Let no machine join with it any more.")
    ] = "",
    as_json: Json = False,
) -> None:
    """List the tokens with which machines may still join, or revoke one, for administrators.

    The tokens themselves are not kept.  Machines that have joined stay.

    [bold]essaim nodes enrolments --revoke 5c1d9e0a77b2[/bold]
    """
    with connected() as client:
        if revoke:
            client.ask("DELETE", f"/api/enrolments/{quote(revoke, safe='')}", repeatable=False)
        found = client.get("/api/enrolments")
    if as_json:
        print_json(found)
        return
    if revoke:
        say(f"enrolment {revoke} is revoked")
        return
    rows = [
        (
            each["id"],
            str(each["uses"]),
            clock(each["expires_at"]),
            each["site"] or "-",
            _labels(each),
            "yes" if each["approve"] else "no",
            each["who"] or "-",
        )
        for each in found
    ]
    headings = ("ENROLMENT", "MACHINES", "UNTIL", "SITE", "LABELS", "APPROVE", "BY")
    sys.stdout.write(table(rows, headings) + "\n")


@app.command()
def approve(node: NodeName, as_json: Json = False) -> None:
    """Let a machine serve that waits for approval, for administrators.

    Look first what it is: essaim nodes show NODE
    """
    _act(node, "approve", {}, as_json=as_json)


@app.command("try")
def try_machines(
    count: Annotated[int, typer.Argument(metavar="N", min=1, max=MOST, help="How many.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before leases end.")] = False,
) -> None:
    """Make the fleet of [bold]serve --try[/bold] larger or smaller while it runs.

    Type it where the server runs, as the same user.  Leases on machines that go
    move to others, with their files; when none is free you are asked before one
    ends.

    [bold]essaim nodes try 5[/bold]

    Exit codes: 0 done, 1 failed, 3 no [bold]serve --try[/bold] runs here.
    """
    with control_plane() as control:
        code = resize(control, count, yes=yes)
    sys.exit(code)


# -- how it is done -----------------------------------------------------------------------------


def _act(node: str, verb: str, body: dict[str, Any], *, as_json: bool) -> None:
    with connected() as client:
        found = _find(client, node)
        # Done twice it is done once, but for readmission, which then says so.
        path = f"/api/nodes/{found['id']}/{verb}"
        changed = client.post(path, body, repeatable=verb == "drain")
    if as_json:
        print_json(changed)
        return
    say(f"{changed['name']} ({changed['id']}): {_state(changed)}")


def _find(client: Client, node: str) -> dict[str, Any]:
    """A machine by its id or its name; names are the machines' own, so there may be several."""
    found = list(client.pages("/api/nodes"))
    fitting = [each for each in found if node in (each["id"], each["name"])]
    if len(fitting) == 1:
        return dict(fitting[0])
    if fitting:
        ids = ", ".join(each["id"] for each in fitting)
        raise UnknownError(f"{len(fitting)} machines are called {node}", hint=f"say which: {ids}")
    names = [each["name"] for each in found]
    raise UnknownError(f"no node {node}", hint=meant(node, names, kind="there are"))


def _state(node: dict[str, Any]) -> str:
    if node.get("waiting"):  # a server of an earlier release says nothing of it
        return f"{node['state']}, waits for approval"
    return f"{node['state']}, drained" if node["drained"] else str(node["state"])


def _labels(node: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in node["labels"].items()) or "-"
