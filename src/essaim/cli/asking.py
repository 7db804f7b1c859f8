"""Have a person agree before something is lost."""

from __future__ import annotations

import sys

import typer

from essaim.cli.tongue import said


def agree(question: str, *, yes: bool) -> None:
    """Ask, and leave the command unless the answer is yes; `yes` answers beforehand.

    Where nobody is there to ask, the command is refused.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(said("ask.nobody"))
    try:
        typer.confirm(question, abort=True, err=True)
    except typer.Abort as abort:
        # Ctrl-C ends this command as it ends any other; any answer but yes is a refusal.
        if isinstance(abort.__context__, KeyboardInterrupt):
            sys.stderr.write("\n")
            raise KeyboardInterrupt from None
        raise
