"""The command line: translates words into use cases and their answers into words."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from essaim.model.errors import MissingExtraError

#: Ended by Ctrl-C, as shells count it.
INTERRUPTED = 130
#: What the scripts of shells run for every Tab; quick, so before everything else.
COMPLETE = "__complete"


def main(program: str = "essaim") -> None:
    """Run the command line; every error Essaim knows ends in a sentence, never in a traceback.

    `program` is how the user called it: the launcher of a checkout passes `./essaim`.
    """
    from essaim.cli.program import use_program

    use_program(program)
    if sys.argv[1:2] == [COMPLETE]:
        from essaim.cli.completion.answer import answer

        answer(sys.argv[2:])
        return
    from essaim.model.errors import EssaimError, MissingExtraError

    try:
        from essaim.cli.tongue import spoken

        if spoken() != "en":
            from essaim.cli import usage_errors

            usage_errors.run(_command(), program)
        _command()(prog_name=program)
    except MissingExtraError as error:
        report(error)
        _offer_to_install(error)
        sys.exit(error.exit_code)
    except EssaimError as error:
        report(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has seen enough: `essaim logs … | head`.
        sys.stderr.close()
        sys.exit(0)


def _command() -> Callable[..., Any]:
    """The table of commands; its help names the program as it was called."""
    from typer.main import get_command

    from essaim.cli.app import app
    from essaim.cli.program import NAME, localise, program_name

    found = get_command(app)
    if program_name() != NAME:
        waiting = [found]
        while waiting:
            each = waiting.pop()
            each.help, each.short_help = localise(each.help or ""), localise(each.short_help or "")
            for param in each.params:
                if help_text := getattr(param, "help", None):
                    param.help = localise(help_text)  # type: ignore[attr-defined]
            waiting += getattr(each, "commands", {}).values()
    return found


def _offer_to_install(error: MissingExtraError) -> None:
    """In a checkout and on a terminal: install what is missing, then do what was asked."""
    import subprocess

    import typer

    from essaim.cli.program import program_name
    from essaim.model.extras import launcher

    script = launcher()
    if not script or "--json" in sys.argv or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    try:
        if not typer.confirm("Install it now, and go on?", default=True, err=True):
            return
    except typer.Abort:
        sys.exit(INTERRUPTED)
    if subprocess.run([script, "--prepare", error.extra], check=False).returncode == 0:
        os.execvp(program_name(), [program_name(), *sys.argv[1:]])  # noqa: S606 - an argument list


def report(error: object) -> None:
    """Say what is wrong, where, and what to do next; as JSON on stdout when that was asked for."""
    from essaim.cli.program import localise

    what = localise(getattr(error, "what", str(error))).removeprefix("essaim: ")
    hint = localise(getattr(error, "hint", ""))
    if "--json" in sys.argv:
        code = getattr(error, "code", "error")
        sys.stdout.write(json.dumps({"error": {"code": code, "what": what, "hint": hint}}) + "\n")
        return
    from essaim.cli.tongue import in_their_language

    what, hint = in_their_language(what), in_their_language(hint)
    sys.stderr.write(f"essaim: {what}\n" + (f"  → {hint}\n" if hint else ""))
