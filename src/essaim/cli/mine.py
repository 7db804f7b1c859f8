"""`mine`: a student's own machine, on somebody else's control plane."""

from __future__ import annotations

import re
import sys
import time
from typing import Annotated, Any

import typer

from essaim.cli.asking import agree
from essaim.cli.carrying import FAILED, PARTLY
from essaim.cli.client import Client, connected
from essaim.cli.output import print_json, table
from essaim.cli.progress import Notes
from essaim.cli.stacks import Json
from essaim.cli.times import clock
from essaim.cli.tongue import in_their_language, said, tell
from essaim.model.errors import InvalidError, Problem, RejectedError, UnknownError
from essaim.model.runs import RunState

app = typer.Typer(
    help="""Your own machine as a student; teachers name a pupil's.

    [bold]essaim mine claim CODE[/bold] once, with the code your teacher gave you; then
    [bold]essaim mine[/bold], [bold]essaim mine start[/bold], [bold]essaim mine ssh[/bold] …""",
)

Which = Annotated[
    str,
    typer.Argument(metavar="ROSTER/LOGIN", help="Yours when absent; teachers name a pupil."),
]
Pupil = Annotated[str, typer.Argument(metavar="ROSTER/LOGIN", help="Whose.")]
Label = Annotated[str, typer.Argument(metavar="LABEL", help="As `snapshots` shows it.")]
LabelOption = Annotated[str, typer.Option(help="What to call it; else the time.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done.")]

#: What a snapshot may be called; the server says it in other words.
LABEL = re.compile(r"[a-z][a-z0-9-]{0,38}")
#: Seconds between two looks.
LOOK = 1.0
#: What may be done with a whole class; with some of it disks are lost.
ON_ALL = ("start", "stop", "retry", "reset", "retire")
LOSING = ("reset", "retire")


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
    name: Annotated[str, typer.Argument(metavar="ROSTER", help="Yours when absent.")] = "",
    verb: Annotated[
        str, typer.Argument(metavar="|".join(ON_ALL), help="What to do with all of them.")
    ] = "",
    only: Annotated[
        list[str] | None, typer.Option(metavar="LOGIN", help="With this one alone; repeat it.")
    ] = None,
    yes: Yes = False,
    wait: Wait = True,
    as_json: Json = False,
) -> None:
    """List the rosters you teach, or the machines of one; or act on all of these.

    [bold]essaim mine class promo start[/bold] before class, [bold]… stop[/bold] after it;
    [bold]retry[/bold] makes those that failed.
    """
    if verb and verb not in ON_ALL:
        what = said("seat.no_verb", verb=verb, verbs=", ".join(ON_ALL))
        raise InvalidError([Problem(what)])
    if verb in LOSING:
        whose = " ".join(only or ())
        agree(said("seat.lost", machine=f"{name} {whose}".rstrip()), yes=yes)
    with connected() as client:
        work = _act_on_all(client, name, verb, only or [], wait=wait) if verb else {}
        found: list[Any] = (
            list(client.pages(f"/api/rosters/{name}")) if name else client.get("/api/rosters")
        )
    if as_json:
        print_json(found)
    elif name:
        _print(found)
    else:
        sys.stdout.write("".join(f"{each}\n" for each in found))
        if not found:
            tell("seat.no_class")
    if failed := work.get("failed"):
        tell("seat.partly", failed=failed, total=work["total"], roster=name)
        sys.exit(PARTLY if work["done"] else FAILED)


def _act_on_all(client: Client, name: str, verb: str, only: list[str], *, wait: bool) -> Any:
    """Begin something with a class; how far it is in the end."""
    work = client.post(f"/api/rosters/{name}/{verb}", {"logins": only})
    note = Notes()
    while wait and work["run"] and RunState(work["state"]).moving:
        waits = "".join(
            f"· {in_their_language(each['what'])} ({each['machines']})"
            for each in work["waits"][:1]
        )
        if work["total"]:
            note(said("seat.progress", done=work["done"], total=work["total"], waits=waits))
        time.sleep(LOOK)
        work = client.get(f"/api/rosters/{name}/runs/{work['run']}")
    return work


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
def retire(which: Pupil, yes: Yes = False, wait: Wait = True, as_json: Json = False) -> None:
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
        name = chosen(client, which)
        found = client.get(f"/api/students/{name}/snapshots")
    if as_json:
        print_json(found)
        return
    if not found:
        tell("seat.no_snapshots", machine=name)
    for each in found:
        sys.stdout.write(f"{each['label']}  {clock(each['made_at'])}\n")


@app.command()
def snapshot(
    which: Which = "", label: LabelOption = "", wait: Wait = True, as_json: Json = False
) -> None:
    """Keep the disk of your machine as it is now."""
    label = label or time.strftime("at-%Y%m%d-%H%M%S", time.gmtime())
    if not LABEL.fullmatch(label):
        raise RejectedError(said("seat.label"))
    with connected() as client:
        path = f"/api/students/{chosen(client, which)}"
        client.ask("PUT", f"{path}/snapshots/{label}")
        found = settled(client, path, wait=wait)
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
        path = f"/api/students/{chosen(client, which)}"
        _confirm(path, yes=yes)
        client.post(f"{path}/snapshots/{label}/restore", {})
        _show(settled(client, path, wait=wait), as_json=as_json)


@app.command()
def forget(label: Label, which: Which = "", wait: Wait = True, as_json: Json = False) -> None:
    """Forget what was kept under a label."""
    with connected() as client:
        path = f"/api/students/{chosen(client, which)}"
        client.ask("DELETE", f"{path}/snapshots/{label}")
        _show(settled(client, path, wait=wait), as_json=as_json)


def _act(verb: str, which: str, *, wait: bool, as_json: bool, yes: bool = True) -> None:
    with connected() as client:
        path = f"/api/students/{chosen(client, which)}"
        _confirm(path, yes=yes)
        if verb == "delete":
            client.ask("DELETE", path)
        else:
            client.post(f"{path}/{verb}", {})
        _show(settled(client, path, wait=wait), as_json=as_json)


def chosen(client: Client, which: str) -> str:
    """ROSTER/LOGIN of the machine that is meant."""
    if which:
        roster_name, slash, login = which.partition("/")
        if not slash or not roster_name or not login:
            what = said("seat.write", login=which.strip("/") or "alice")
            raise InvalidError([Problem(what)])
        return which
    found = client.get("/api/students")
    if not found:
        raise UnknownError(said("seat.nothing"))
    if len(found) > 1:
        names = ", ".join(f"{each['roster']}/{each['login']}" for each in found)
        raise UnknownError(said("seat.which", machines=names))
    return f"{found[0]['roster']}/{found[0]['login']}"


def _confirm(path: str, *, yes: bool) -> None:
    agree(said("seat.lost", machine=path.removeprefix("/api/students/")), yes=yes)


def settled(client: Client, path: str, *, wait: bool) -> Any:
    """The machine once nothing is done with it any more."""
    found = client.get(path)
    while wait and found["doing"]:
        time.sleep(LOOK)
        found = client.get(path)
    if wait and (found["failed"] or found["state"] == "stuck"):
        why = in_their_language(found["failed"])
        raise RejectedError(f"{found['machine']}: {found['said']}: {why}")
    return found


def _show(found: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    _print([found])


def _print(found: list[Any]) -> None:
    rows = [
        (
            each["machine"],
            each["said"],
            each["address"] or "-",
            clock(each["since"]),
            in_their_language(each["doing"]),
        )
        for each in found
    ]
    sys.stdout.write(table(rows, said("seat.headings").split("|")) + "\n")
