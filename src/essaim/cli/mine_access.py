"""`mine ssh`, `mine cp` and `mine key`: how a student gets into their machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typing_extensions import override

from essaim.cli.access import enter, public_key, through
from essaim.cli.client import Client, connected
from essaim.cli.mine import Which, chosen, settled
from essaim.cli.output import print_json
from essaim.cli.session import client_home, write_private
from essaim.cli.stacks import Json
from essaim.cli.tongue import said, tell
from essaim.model.errors import RejectedError
from essaim.model.public_keys import fingerprint

_COMMAND = "essaim.command"


class WithCommand(TyperCommand):
    """A command line after which `--` begins the words of another one."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words, command = args, list[str]()
        if "--" in args:
            at = args.index("--")
            words, command = args[:at], args[at + 1 :]
        ctx.meta[_COMMAND] = command
        return super().parse_args(ctx, words)


def ssh(context: typer.Context, which: Which = "") -> None:
    """Log in to your machine, or run a command there: [bold]essaim mine ssh -- make[/bold].

    It goes through the gateway, with your SSH key. If your machine knows no key of
    yours yet, your usual one (~/.ssh/id_*.pub) is sent; if you have none, one is made.

    Plain ssh does the same once the key is there: [bold]ssh -p 2222 promo.alice@GATEWAY[/bold]
    """
    enter(ssh_command(which, context.meta[_COMMAND]))


def key(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A public key; your usual one when absent.")
    ] = "",
    which: Which = "",
    as_json: Json = False,
) -> None:
    """Say which SSH key opens your machine; the one before opens it no more.

    [bold]essaim mine key ~/.ssh/id_ed25519.pub[/bold]
    """
    with connected() as client:
        name = chosen(client, which)
        found = send_key(client, name, file)
    if as_json:
        print_json(found)
        return
    word = "seat.key_sent" if found["key_ready"] else "seat.key_later"
    if not found["key_ready"] and found["power"] == "on":
        raise RejectedError(no_entry(found))
    tell(word, machine=found["machine"], fingerprint=found["key"])


def cp(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="SRC… DST", help="A path here, or :PATH on it."),
    ],
    update: Annotated[
        bool,
        typer.Option("--update", "-u", help="Skip files that are there with same size and time."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Copy files and directories to your machine and back.

    What follows the colon is a path on your machine, from your home on; nothing is the
    home. With several machines, name one: ROSTER/LOGIN:PATH.

    [bold]essaim mine cp report.odt data/ :[/bold]

    [bold]essaim mine cp ':results/*.csv' .[/bold]
    """
    from essaim.cli.copy import copy

    own = _own_machine() if any(each.startswith(":") for each in paths) else ""
    named = [f"{own}{each}" if each.startswith(":") else each for each in paths]
    copy(named, lambda name: ssh_command(_student(name)), update=update, quiet=quiet)


def _own_machine() -> str:
    with connected() as client:
        return str(client.get(f"/api/students/{chosen(client, '')}")["machine"])


def _student(machine: str) -> str:
    """ROSTER/LOGIN of one's own machine; the name of any other is taken for that."""
    with connected() as client:
        for each in client.get("/api/students"):
            if each["machine"] == machine:
                return f"{each['roster']}/{each['login']}"
    return machine


def ssh_command(which: str, command: list[str] | None = None) -> list[str]:
    """The ssh command that enters one's machine; the key is sent first when it knows none."""
    with connected() as client:
        name = chosen(client, which)
        found = client.get(f"/api/students/{name}")
        if not found["key"]:
            found = send_key(client, name, "")
        identity = _identity(found)
        if not found["key_ready"] and found["power"] != "off":
            found = send_key(client, name, identity)
    if found["power"] == "off":
        raise RejectedError(said("seat.stopped", machine=found["machine"]))
    if not found["access"] or not found["key_ready"]:
        raise RejectedError(no_entry(found))
    return through(found["access"], identity).command(1, command)


def send_key(client: Client, name: str, file: str) -> Any:
    """Send a public key, wait until the machine has it if it is on, and return the machine."""
    line, identity = public_key(file)
    path = f"/api/students/{name}"
    client.ask("PUT", f"{path}/key", json={"public_key": line})
    found = settled(client, path, wait=True)
    if not found["key_ready"] and found["power"] == "on" and not found["no_access"]:
        # What was done with the machine when the key came may have been past it.
        client.ask("PUT", f"{path}/key", json={"public_key": line})
        found = settled(client, path, wait=True)
    write_private(_remembered(name), identity)
    return found


def no_entry(found: Any) -> str:
    """Why one cannot log in to a machine that is on."""
    why = found["no_access"] or said("seat.no_account")
    return said("seat.no_entry", machine=found["machine"], why=why)


def _identity(found: Any) -> str:
    """The private key for the public one that the machine knows; RejectedError if none is here."""
    name = f"{found['roster']}/{found['login']}"
    if _remembered(name).exists():
        line, identity = public_key(_remembered(name).read_text(encoding="utf-8").strip())
        if fingerprint(line) == found["key"]:
            return identity
    line, identity = public_key("")
    if fingerprint(line) == found["key"]:
        return identity
    shown = f"{identity}.pub" if not identity.endswith(".pub") else identity
    raise RejectedError(
        said("seat.key_other", machine=found["machine"], known=found["key"], path=shown)
    )


def _remembered(name: str) -> Path:
    folder = client_home() / "machines"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / name.replace("/", ".")
