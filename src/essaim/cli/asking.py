"""Have a person agree before something is lost."""

from __future__ import annotations

import sys

import typer

from essaim.cli.tongue import said, spoken

#: What is understood as a yes, besides English, whatever the language of the question.
YES = ("o", "oui", "y", "yes")


def agree(question: str, *, yes: bool) -> None:
    """Ask, and leave the command unless the answer is yes; `yes` answers beforehand.

    Where nobody is there to ask, the command is refused.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        from essaim.model.errors import InvalidError, Problem

        raise InvalidError([Problem(said("ask.nobody"))])
    try:
        _confirm(question)
    except typer.Abort as abort:
        # Ctrl-C ends this command as it ends any other; any answer but yes is a refusal.
        if isinstance(abort.__context__, KeyboardInterrupt):
            sys.stderr.write("\n")
            raise KeyboardInterrupt from None
        raise


def _confirm(question: str) -> None:
    if spoken() == "en":
        typer.confirm(question, abort=True, err=True)
        return
    answer = typer.prompt(
        f"{question} [o/N]", default="", show_default=False, err=True, prompt_suffix=" : "
    )
    if answer.strip().lower() not in YES:
        raise typer.Abort
