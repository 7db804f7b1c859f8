"""Commands that cannot be meant, told in the language of the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

import typer

from essaim.cli.tongue import in_their_language, said

#: What the library of the command line raises for them; its own sentences are English.
CommandError: type[Exception] = typer.BadParameter.__mro__[2]
USAGE = 2


def run(command: Callable[..., object], program: str) -> NoReturn:
    """Run the command line and leave with its exit code."""
    try:
        code = command(prog_name=program, standalone_mode=False)
    except CommandError as error:
        sys.exit(_tell(error, program))
    except typer.Abort:
        sys.stderr.write(f"{said('ask.stopped')}\n")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _tell(error: Exception, program: str) -> int:
    """Say what is wrong with a command and what shows how it is written; gives the exit code."""
    its = vars(error)
    text = getattr(error, "format_message", error.__str__)()
    context = its.get("ctx")
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]  # it has no sentence but the help it shows
        return USAGE
    where = context.command_path if context is not None else program
    hint = said("usage.help", command=f"{where} --help")
    sys.stderr.write(f"essaim: {in_their_language(text)}\n  → {hint}\n")
    return int(getattr(error, "exit_code", USAGE))
