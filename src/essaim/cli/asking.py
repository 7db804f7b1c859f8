"""Have a person agree before something is lost."""

from __future__ import annotations

import sys

import typer

from essaim.cli.tongue import said, spoken

#: What is understood as a yes, besides English, whatever the language of the question.
YES = ("o", "oui", "y", "yes")


def agree(question: str, *, yes: bool, must: bool = True) -> None:
    """Ask, and leave the command unless the answer is yes; `yes` answers beforehand.

    Where nobody is there to ask, the command is refused; without `must` it goes on.
    """
    if yes:
        return
    if sys.stdin.isatty():
        _confirm(question)
    elif must:
        from essaim.model.errors import InvalidError, Problem

        raise InvalidError([Problem(said("ask.nobody"))])


def _confirm(question: str) -> None:
    if spoken() == "en":
        typer.confirm(question, abort=True, err=True)
        return
    answer = typer.prompt(
        f"{question} [o/N]", default="", show_default=False, err=True, prompt_suffix=" : "
    )
    if answer.strip().lower() not in YES:
        raise typer.Abort
