"""Asks for a password, and logs in with it."""

from __future__ import annotations

import dataclasses
import os
import sys

import typer

from essaim.cli import session
from essaim.cli.client import UNAUTHORISED, Client, LoginError, checked, read_json, taken
from essaim.cli.tongue import said


def log_in(client: Client, kept: session.Kept, name: str, word: str) -> None:
    """Begin a session and keep it; LoginError when name or password is wrong."""
    answer = client.send("POST", "/api/login", json={"name": name, "password": word})
    if answer.status_code == UNAUTHORISED:
        raise LoginError(said("login.wrong"), hint=f"essaim signup {name} --server {kept.server}")
    following = taken(dataclasses.replace(kept, name=name), read_json(checked(answer)))
    with session.locked():
        session.write(following)


def log_in_again(client: Client) -> bool:
    """Ask for the password once more and go on in a new session; False when nobody can be asked.

    The old session is ended: it would only be forgotten.
    """
    kept = session.read()
    told = os.environ.get("ESSAIM_PASSWORD")
    if kept is None or not kept.name or not (told or sys.stdin.isatty()):
        return False
    if not told:
        sys.stderr.write(said("login.again", name=kept.name) + "\n")
    try:
        log_in(client, kept, kept.name, ask_password())
    except LoginError:
        if told:
            return False  # it may be the new one that is to be set
        raise
    client.send("POST", "/api/logout", token=kept.access)
    return True


def ask_password(*, twice: bool = False) -> str:
    """Whatever proves who somebody is; never from the command line, which others can see."""
    told = os.environ.get("ESSAIM_PASSWORD")
    if told:
        return told
    if not sys.stdin.isatty():
        line = sys.stdin.readline().rstrip("\n")
        if not line:
            raise typer.BadParameter(
                "there is no terminal to ask for the password on; "
                "give it in ESSAIM_PASSWORD or on standard input"
            )
        return line
    import getpass

    word = getpass.getpass(said("password.ask"))
    if twice and getpass.getpass(said("password.again")) != word:
        raise typer.BadParameter(said("password.differ"))
    return word
