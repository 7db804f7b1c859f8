"""Have a person agree before something is lost."""

from __future__ import annotations

import sys

import typer

from essaim.cli.tongue import said


def agree(question: str, *, yes: bool, must: bool = True) -> None:
    """Ask, and leave the command unless the answer is yes; `yes` answers beforehand.

    Where nobody is there to ask, the command is refused; without `must` it goes on.
    """
    if yes:
        return
    if sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)
    elif must:
        from essaim.model.errors import InvalidError, Problem

        raise InvalidError([Problem(said("ask.nobody"))])
