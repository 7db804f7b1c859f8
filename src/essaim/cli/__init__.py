"""The command line: translates words into use cases and their answers into words."""

from __future__ import annotations

import json
import sys

#: Ended by Ctrl-C, as shells count it.
INTERRUPTED = 130


def main() -> None:
    """Run the command line; every error Essaim knows ends in a sentence, never in a traceback."""
    from essaim.model.errors import EssaimError

    try:
        from essaim.cli.app import app
        from essaim.cli.tongue import spoken

        if spoken() != "en":
            from essaim.cli import usage_errors

            usage_errors.run(app)
        app(prog_name="essaim")
    except EssaimError as error:
        report(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has seen enough: `essaim logs … | head`.
        sys.stderr.close()
        sys.exit(0)


def report(error: object) -> None:
    """Say what is wrong, where, and what to do next; as JSON on stdout when that was asked for."""
    what, hint = getattr(error, "what", str(error)), getattr(error, "hint", "")
    if "--json" in sys.argv:
        code = getattr(error, "code", "error")
        sys.stdout.write(json.dumps({"error": {"code": code, "what": what, "hint": hint}}) + "\n")
        return
    from essaim.cli.tongue import in_their_language

    what, hint = in_their_language(what), in_their_language(hint)
    sys.stderr.write(f"essaim: {what}\n" + (f"  → {hint}\n" if hint else ""))
