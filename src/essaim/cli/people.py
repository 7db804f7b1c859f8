"""`signup`, `login`, `logout`, `whoami`, `password`, `users`, `projects`."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, Any
from urllib.parse import quote

import typer

from essaim.cli import session
from essaim.cli.client import (
    LoginError,
    UnreachableError,
    anonymous,
    checked,
    chosen,
    connected,
    current,
    read_json,
)
from essaim.cli.login import ask_password, log_in
from essaim.cli.output import print_json, say, table
from essaim.cli.stacks import Json
from essaim.cli.tongue import tell
from essaim.model.errors import EssaimError

Name = Annotated[str, typer.Argument(metavar="NAME", help="Small letters, digits, . - _")]
Account = Annotated[
    str, typer.Argument(metavar="NAME", help="Name or id (u-…) of an account that exists.")
]
Server = Annotated[
    str,
    typer.Option(
        "--server",
        metavar="URL",
        help="Default: $ESSAIM_SERVER, else the one of last time, else this computer.",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow http:// to another computer: others can listen.")
]
Authority = Annotated[
    str, typer.Option("--ca", metavar="FILE", help="Trust these certificates (PEM) instead.")
]

users = typer.Typer()
projects = typer.Typer()


def signup(
    name: Name,
    server: Server = "",
    insecure: Insecure = False,
    ca: Authority = "",
    invite: Annotated[
        str,
        typer.Option(metavar="CODE", help="The code you were given, where sign-up needs one."),
    ] = "",
    login: Annotated[
        bool, typer.Option("--login/--no-login", help="Log in at once as the new person.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Make an account for yourself on a server, and log in.

    The password is asked for; where there is no terminal it is read from
    ESSAIM_PASSWORD or from standard input.

    [bold]essaim signup ada --server https://essaim.example.org --invite CODE[/bold]

    A student's own code (essaim students invite) also gives them their machine.
    """
    kept = chosen(server, insecure=insecure, ca=ca)
    word = ask_password(twice=True)
    with anonymous(kept) as client:
        answer = client.send("POST", "/api/signup", json=_new_person(name, word, invite))
        person = read_json(checked(answer))
        pending = bool(person.get("pending"))
        if login and not pending:
            log_in(client, kept, name, word)
    if as_json:
        print_json(person)
        return
    if pending:
        tell("signup.pending", name=name, server=kept.server)
        return
    tell("signup.done", name=name, server=kept.server)
    if not login:
        say(f"  → essaim login {name} --server {kept.server}")


def login(
    name: Name,
    server: Server = "",
    insecure: Insecure = False,
    ca: Authority = "",
    as_json: Json = False,
) -> None:
    """Log in on a server; the other commands then speak to it in your name.

    The password is asked for; where there is no terminal it is read from
    ESSAIM_PASSWORD or from standard input.  The server is remembered.

    [bold]essaim login ada --server https://essaim.example.org[/bold]

    [bold]ESSAIM_PASSWORD=… essaim login robot[/bold]
    """
    kept = chosen(server, insecure=insecure, ca=ca)
    with anonymous(kept) as client:
        log_in(client, kept, name, ask_password())
    if as_json:
        print_json({"name": name, "server": kept.server})
        return
    tell("login.done", name=name, server=kept.server)


def logout(as_json: Json = False) -> None:
    """End the session, here and on the server."""
    kept = session.read()
    was = kept is not None and bool(kept.refresh)
    told = False
    if was:
        told = _end_there()
        with session.locked():
            # Read anew: it may have been carried on meanwhile.
            kept = session.read() or kept
            if kept is not None:
                session.write(dataclasses.replace(kept, access="", refresh="", expires_at=0.0))
    if as_json:
        print_json({"logged_in": was, "ended_on_server": told})
    elif kept is None or not was:
        tell("logout.nobody")
    else:
        tell("logout.done" if told else "logout.here", server=kept.server)


def whoami(as_json: Json = False) -> None:
    """Say who you are on the server, and what you may have."""
    with connected() as client:
        person = client.get("/api/me")
    if as_json:
        print_json({**person, "server": client.server})
        return
    project = f", {person['project']}" if person.get("project") else ""
    sys.stdout.write(f"{person['name']} ({person['role']}{project}) @ {client.server}\n")
    tell("whoami.quota", machines=person["machines"], hours=f"{person['hours']:.12g}")


def password(as_json: Json = False) -> None:
    """Change your own password; every other session of yours is over then."""
    name = current().name
    word = ask_password(twice=True)
    with connected() as client:
        client.ask("PATCH", f"/api/users/{quote(name)}", json={"password": word})
        log_in(client, chosen(client.server, insecure=False, ca=""), name, word)
    if as_json:
        print_json({"name": name})
        return
    tell("password.done")


# -- for those who run the place ----------------------------------------------------------------


@users.callback(invoke_without_command=True)
def list_users(context: typer.Context, as_json: Json = False) -> None:
    """List people, or change what one may do.

    [bold]essaim users[/bold]

    [bold]essaim users set ada --machines 8 --hours 500[/bold]

    [bold]essaim users invite[/bold] makes a code for somebody who has no account yet.
    """
    if context.invoked_subcommand is None:
        show_users(as_json=as_json)


@users.command("list")
def show_users(as_json: Json = False) -> None:
    """List people by name, for operators."""
    with connected() as client:
        found = list(client.pages("/api/users"))
    if as_json:
        print_json(found)
        return
    rows = [_row(person) for person in found]
    headings = ("NAME", "ROLE", "PROJECT", "MACHINES", "HOURS", "")
    sys.stdout.write(table(rows, headings) + "\n")


@users.command("set")
def set_user(
    name: Account,
    role: Annotated[
        str | None, typer.Option(metavar="ROLE", help="member, operator or admin.")
    ] = None,
    project: Annotated[
        str | None, typer.Option(help="Whose quota they share; '' for none.")
    ] = None,
    machines: Annotated[int | None, typer.Option(help="At the same time.")] = None,
    hours: Annotated[float | None, typer.Option(help="Machine-hours in thirty days.")] = None,
    disabled: Annotated[
        bool | None,
        typer.Option("--disable/--enable", help="A disabled person is logged out at once."),
    ] = None,
    new_password: Annotated[
        bool, typer.Option("--password", help="Give them another password; it is asked for.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Change a person, for administrators; what is not named stays as it is.

    [bold]essaim users set ada --role operator[/bold]

    [bold]essaim users set bob --project compilers --machines 8 --hours 500[/bold]

    [bold]essaim users set eve --disable[/bold]
    """
    given: dict[str, Any] = {
        "role": role,
        "project": project,
        "machines": machines,
        "hours": hours,
        "disabled": disabled,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes and not new_password:
        raise typer.BadParameter("say what shall change: --role, --project, --machines, …")
    with connected() as client:
        if new_password:
            changes["password"] = ask_password(twice=True)
        path = f"/api/users/{quote(name, safe='')}"
        person = read_json(client.ask("PATCH", path, json=changes))
    if as_json:
        print_json(person)
        return
    say("  ".join(part for part in _row(person) if part))


@projects.callback(invoke_without_command=True)
def list_projects(context: typer.Context, as_json: Json = False) -> None:
    """List projects, or change what their people may have together.

    [bold]essaim projects set compilers --machines 40 --hours 2000[/bold]
    """
    if context.invoked_subcommand is None:
        show_projects(as_json=as_json)


@projects.command("list")
def show_projects(as_json: Json = False) -> None:
    """List projects by name, for operators."""
    with connected() as client:
        found = list(client.pages("/api/projects"))
    if as_json:
        print_json(found)
        return
    rows = [(each["name"], str(each["machines"]), f"{each['hours']:.12g}") for each in found]
    sys.stdout.write(table(rows, ("PROJECT", "MACHINES", "HOURS")) + "\n")


@projects.command("set")
def set_project(
    name: Annotated[str, typer.Argument(metavar="PROJECT")],
    machines: Annotated[int | None, typer.Option(help="At the same time, together.")] = None,
    hours: Annotated[float | None, typer.Option(help="Machine-hours in thirty days.")] = None,
    as_json: Json = False,
) -> None:
    """Limit what the people of a project may have together, for administrators."""
    given = {"machines": machines, "hours": hours}
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise typer.BadParameter("say what shall change: --machines or --hours")
    with connected() as client:
        path = f"/api/projects/{quote(name, safe='')}"
        found = read_json(client.ask("PATCH", path, json=changes))
    if as_json:
        print_json(found)
        return
    say(f"{name}: {found['machines']} machines, {found['hours']:.12g} machine-hours in thirty days")


# -- how it is done -----------------------------------------------------------------------------


def _row(person: dict[str, Any]) -> tuple[str, ...]:
    return (
        person["name"],
        person["role"],
        person["project"] or "-",
        str(person["machines"]),
        f"{person['hours']:.12g}",
        "waits for approval" if person.get("pending") else "disabled" * person["disabled"],
    )


def _new_person(name: str, word: str, invite: str) -> dict[str, str]:
    person = {"name": name, "password": word}
    # Left out when there is none: an earlier server knows no such field.
    return {**person, "invite": invite} if invite else person


def _end_there() -> bool:
    """End the session on the server; no when it cannot be told, or knows of none."""
    try:
        with connected() as client:
            client.post("/api/logout", {})
    except (LoginError, UnreachableError):
        return False
    except EssaimError as error:
        say(f"essaim: {error.what}")
        return False
    return True
