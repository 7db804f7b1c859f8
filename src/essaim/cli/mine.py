"""`mine`: a student's own machine, on somebody else's control plane."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from essaim.cli.client import Client, connected
from essaim.cli.output import print_json, table
from essaim.cli.stacks import Json
from essaim.cli.times import clock
from essaim.cli.tongue import said, tell
from essaim.model.errors import RejectedError, UnknownError

app = typer.Typer(
    help="""Your own machine as a student; teachers name a pupil's.

    [bold]essaim mine claim CODE[/bold] once, with the code your teacher gave you; then
    [bold]essaim mine[/bold], [bold]essaim mine start[/bold], [bold]essaim mine stop[/bold] …""",
)

Which = Annotated[
    str,
    typer.Argument(metavar="[ROSTER/LOGIN]", help="Yours when absent; teachers name a pupil."),
]
Label = Annotated[str, typer.Argument(metavar="LABEL", help="As `snapshots` shows it.")]
LabelOption = Annotated[str, typer.Option(help="What to call it; else the time.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done.")]

#: Seconds between two looks.
LOOK = 1.0


@app.callback(invoke_without_command=True)
def _list(context: typer.Context, as_json: Json = False) -> None:
    if context.invoked_subcommand is not None:
        return
    with connected() as client:
        found = client.get("/api/students")
    if as_json:
        print_json(found)
        return
    if not found:
        tell("seat.nothing")
        return
    _print(found)


@app.command()
def claim(
    code: Annotated[str, typer.Argument(metavar="CODE", help="What your teacher gave you.")],
    as_json: Json = False,
) -> None:
    """Take possession of your machine, once."""
    with connected() as client:
        found = client.post("/api/students/claim", {"code": code})
    if as_json:
        print_json(found)
        return
    tell("seat.claimed", machine=found["machine"])


@app.command("class")
def roster(
    name: Annotated[str, typer.Argument(metavar="[ROSTER]", help="Yours when absent.")] = "",
    as_json: Json = False,
) -> None:
    """List the rosters you teach, or the machines of one."""
    with connected() as client:
        found: list[Any] = (
            list(client.pages(f"/api/rosters/{name}")) if name else client.get("/api/rosters")
        )
    if as_json:
        print_json(found)
    elif name:
        _print(found)
    else:
        sys.stdout.write("".join(f"{each}\n" for each in found))


@app.command()
def create(which: Which = "", wait: Wait = True, as_json: Json = False) -> None:
    """Make your machine, if you gave it back or it could not be made."""
    _act("create", which, wait=wait, as_json=as_json)


@app.command()
def start(which: Which = "", wait: Wait = True, as_json: Json = False) -> None:
    """Start your machine."""
    _act("start", which, wait=wait, as_json=as_json)


@app.command()
def stop(which: Which = "", wait: Wait = True, as_json: Json = False) -> None:
    """Stop your machine; its disk stays."""
    _act("stop", which, wait=wait, as_json=as_json)


@app.command()
def reset(which: Which = "", yes: Yes = False, wait: Wait = True, as_json: Json = False) -> None:
    """Make your machine anew: its address stays, what is on its disk is lost."""
    _act("reset", which, yes=yes, wait=wait, as_json=as_json)


@app.command()
def retire(which: Which, yes: Yes = False, wait: Wait = True, as_json: Json = False) -> None:
    """Take a pupil's machine out of reach; for teachers."""
    _act("retire", which, yes=yes, wait=wait, as_json=as_json)


@app.command()
def delete(which: Which = "", yes: Yes = False, wait: Wait = True, as_json: Json = False) -> None:
    """Give your machine back: its disk is lost; `create` makes another."""
    _act("delete", which, yes=yes, wait=wait, as_json=as_json)


@app.command()
def snapshots(which: Which = "", as_json: Json = False) -> None:
    """List what was kept of your machine."""
    with connected() as client:
        found = client.get(f"/api/students/{_chosen(client, which)}/snapshots")
    if as_json:
        print_json(found)
        return
    for each in found:
        sys.stdout.write(f"{each['label']}  {clock(each['made_at'])}\n")


@app.command()
def snapshot(
    which: Which = "", label: LabelOption = "", wait: Wait = True, as_json: Json = False
) -> None:
    """Keep the disk of your machine as it is now."""
    label = label or time.strftime("at-%Y%m%d-%H%M%S", time.gmtime())
    with connected() as client:
        path = f"/api/students/{_chosen(client, which)}"
        client.ask("PUT", f"{path}/snapshots/{label}")
        found = _settled(client, path, wait=wait)
    if as_json:
        print_json({**found, "label": label})
        return
    tell("seat.kept", machine=found["machine"], label=label)


@app.command()
def restore(
    label: Label, which: Which = "", yes: Yes = False, wait: Wait = True, as_json: Json = False
) -> None:
    """Go back to what was kept: what was written since is lost."""
    with connected() as client:
        path = f"/api/students/{_chosen(client, which)}"
        _confirm(path, yes=yes)
        client.post(f"{path}/snapshots/{label}/restore", {})
        _show(_settled(client, path, wait=wait), as_json=as_json)


@app.command()
def forget(label: Label, which: Which = "", wait: Wait = True, as_json: Json = False) -> None:
    """Forget what was kept under a label."""
    with connected() as client:
        path = f"/api/students/{_chosen(client, which)}"
        client.ask("DELETE", f"{path}/snapshots/{label}")
        _show(_settled(client, path, wait=wait), as_json=as_json)


def _act(verb: str, which: str, *, wait: bool, as_json: bool, yes: bool = True) -> None:
    with connected() as client:
        path = f"/api/students/{_chosen(client, which)}"
        _confirm(path, yes=yes)
        if verb == "delete":
            client.ask("DELETE", path)
        else:
            client.post(f"{path}/{verb}", {})
        _show(_settled(client, path, wait=wait), as_json=as_json)


def _chosen(client: Client, which: str) -> str:
    """ROSTER/LOGIN of the machine that is meant."""
    if which:
        roster_name, slash, login = which.partition("/")
        if not slash or not roster_name or not login:
            raise typer.BadParameter("write ROSTER/LOGIN")
        return which
    found = client.get("/api/students")
    if not found:
        raise UnknownError(said("seat.nothing"))
    if len(found) > 1:
        names = ", ".join(f"{each['roster']}/{each['login']}" for each in found)
        raise UnknownError(said("seat.which", machines=names))
    return f"{found[0]['roster']}/{found[0]['login']}"


def _confirm(path: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody here to ask: say --yes")
    machine = path.removeprefix("/api/students/")
    typer.confirm(said("seat.lost", machine=machine), abort=True, err=True)


def _settled(client: Client, path: str, *, wait: bool) -> Any:
    """The machine once nothing is done with it any more."""
    found = client.get(path)
    while wait and found["doing"]:
        time.sleep(LOOK)
        found = client.get(path)
    if wait and (found["failed"] or found["state"] == "stuck"):
        raise RejectedError(f"{found['machine']}: {found['said']}: {found['failed']}")
    return found


def _show(found: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    _print([found])


def _print(found: list[Any]) -> None:
    rows = [
        (each["machine"], each["said"], each["address"] or "-", clock(each["since"]), each["doing"])
        for each in found
    ]
    sys.stdout.write(table(rows, said("seat.headings").split("|")) + "\n")
