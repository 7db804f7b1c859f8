"""The name this program was called by, and the commands in messages written with it.

Messages all over Essaim name commands as `essaim up`.  In a checkout there is only `./essaim`, so
the command line rewrites them where it prints them.  That covers what a server says, too.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

NAME = "essaim"
_called = [NAME]


def use_program(name: str) -> None:
    """Remember how the user called this program."""
    _called[0] = name


def program_name() -> str:
    """Return how the user called this program: `./essaim` in a checkout, `essaim` if installed."""
    return _called[0]


def localise(text: str) -> str:
    """Rewrite every command in a text, `essaim up …`, to what the user can type."""
    if _called[0] == NAME or NAME not in text:
        return text
    return _commands().sub(lambda _found: _called[0], text)


@functools.cache
def _commands() -> re.Pattern[str]:
    """Match the program's name before one of its own commands, and nowhere else."""
    from essaim.cli.app import app

    names = "|".join([*command_names(app), "--prepare", "--help"])
    return re.compile(rf"(?<![\w./@-]){NAME}(?= (?:{names})(?![\w-]))")


def command_names(app: typer.Typer) -> list[str]:
    """Return the first words the command line knows."""
    commands = [
        each.name or getattr(each.callback, "__name__", "").replace("_", "-")
        for each in app.registered_commands
    ]
    groups = [str(each.name) for each in app.registered_groups]
    return sorted([*commands, *groups])
