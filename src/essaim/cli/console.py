"""`console`: the screen and keyboard of a machine that cannot be reached over the network."""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from essaim.cli.output import print_json, say
from essaim.cli.stacks import Json, control_plane

if TYPE_CHECKING:
    import socket

ESCAPE = b"\x1d"  #: Ctrl-]
_PIECE = 1 << 16


def console(
    machine: Annotated[str, typer.Argument(metavar="STACK/MACHINE")],
    log: Annotated[
        bool, typer.Option("--log", help="Print what it has printed since its start, and end.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Sit at a machine's serial console, even when it does not answer over SSH.

    [bold]essaim console slurm/nodes-2[/bold] connects your terminal to it: press
    Enter to see a prompt, Ctrl-] to leave.  One person at a time.

    [bold]essaim console --log slurm/nodes-2[/bold] prints its boot messages: look
    there first when `up` says that a machine does not answer.  Works when it is
    off, too.
    """
    from essaim.usecases import consoles as use

    if as_json and not log:
        raise typer.BadParameter("--json goes with --log: a conversation is no document")
    with control_plane() as app:
        if log:
            name, text = use.console_log(app, machine)
            if as_json:
                print_json({"machine": str(name), "log": text})
            else:
                _print_log(str(name), text)
            return
        name, line = use.open_console(app, machine)
        say(f"{name}: this is its console; Enter shows a prompt, Ctrl-] leaves")
        ended = True
        with line, _raw(), contextlib.suppress(ConnectionError):
            ended = _converse(line)
        say(f"\n{name}: {'it was powered off' if ended else 'left'}")


def _print_log(name: str, text: str) -> None:
    if not text:
        say(f"{name} has printed nothing yet: it was not started, or its image is silent")
    sys.stdout.write(text if text.endswith("\n") or not text else text + "\n")


def _converse(line: socket.socket) -> bool:
    """Carry what is typed there and what is printed here; true when the machine ended it."""
    typed, shown = sys.stdin.fileno(), sys.stdout.fileno()
    with selectors.DefaultSelector() as wait:
        wait.register(line, selectors.EVENT_READ)
        with contextlib.suppress(
            PermissionError
        ):  # a file, or nothing at all, cannot be waited for
            wait.register(typed, selectors.EVENT_READ)
        while True:
            for key, _ in wait.select():
                if key.fileobj is line:
                    piece = line.recv(_PIECE)
                    if not piece:
                        return True
                    _write(shown, piece)
                    continue
                piece = os.read(typed, _PIECE)
                before, escape, _ = piece.partition(ESCAPE)
                line.sendall(before)
                if escape:
                    return False
                if not piece:
                    wait.unregister(typed)  # nothing more will be typed, but much may be printed


def _write(to: int, piece: bytes) -> None:
    while piece:
        piece = piece[os.write(to, piece) :]


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Let every key through to the machine, Ctrl-C too, and give the terminal back as it was."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
