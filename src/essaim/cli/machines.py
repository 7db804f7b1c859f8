"""`ssh`, `run`, `logs`."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essaim.cli.carrying import PARTLY
from essaim.cli.output import duration, print_json, say
from essaim.cli.stacks import Json, control_plane

if TYPE_CHECKING:
    from essaim.model.runs import CommandLog

FAILED = 1


def ssh(
    machine: Annotated[
        str, typer.Argument(metavar="STACK/MACHINE|LEASE", help="LEASE.2 is its second machine.")
    ],
    command: Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND…]")] = None,
) -> None:
    """Open a session on a machine of a stack or of a lease, with its host key pinned.

    [bold]essaim ssh slurm/nodes-2[/bold]

    [bold]essaim ssh l-3k9x2m7q -- nproc[/bold]
    """
    from essaim.cli.access import LEASE, enter

    if LEASE.fullmatch(machine):
        enter(machine, command or [])
    from essaim.usecases import machines as use

    with control_plane() as app:
        words = use.ssh_command(app, machine, command or [])
    os.execvp(words[0], words)  # noqa: S606 - an argument list; ssh itself takes over the terminal


def run(
    where: Annotated[
        str, typer.Argument(metavar="STACK[/GROUP|/MACHINE]", help="One machine, a group, or all.")
    ],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…")],
    within: Annotated[float, typer.Option(metavar="SECONDS", help="Give up after this.")] = 600.0,
    as_json: Json = False,
) -> None:
    """Run a command on one machine or many, and end with its exit code.

    On one machine the output is the command's own; on several each line begins with the machine.
    """
    from essaim.model.errors import EssaimError
    from essaim.usecases import machines as use

    with control_plane() as app:
        _stack, machines = use.find(app, where)
        codes: list[int] = []
        found: list[dict[str, Any]] = []
        for target, result in use.run(app, where, command, within=within):
            if isinstance(result, EssaimError):
                say(f"{target.name}: {result.what}")
                codes.append(FAILED)
                found.append({"machine": str(target.name), "error": result.what})
                continue
            codes.append(result.exit_code)
            found.append(
                {
                    "machine": str(target.name),
                    "exit_code": result.exit_code,
                    "output": result.output,
                    "seconds": round(result.seconds, 3),
                }
            )
            if not as_json:
                _print(str(target.name) if len(machines) > 1 else "", result.output)
    if as_json:
        print_json(found)
    sys.exit(_exit_code(codes))


def logs(
    where: Annotated[
        str, typer.Argument(metavar="STACK[/MACHINE]|RUN", help="A machine, a stack, or a run.")
    ],
    lines: Annotated[int, typer.Option("--commands", "-n", help="The last N commands.")] = 50,
    as_json: Json = False,
) -> None:
    """Show what commands printed on machines, oldest first."""
    from essaim.usecases import runs as use

    with control_plane() as app:
        if app.journal.get(where):
            found = use.logs(app, run=where, limit=lines)
        else:
            found = use.logs(app, machine=where, limit=lines)
    if as_json:
        print_json(found)
        return
    if not found:
        say(f"nothing was logged for {where}; essaim runs lists what ran")
    for log in found:
        _print_log(log)


def _print_log(log: CommandLog) -> None:
    at = time.strftime("%H:%M:%S", time.localtime(log.started_at))
    mark = "ok" if log.exit_code == 0 else f"exit {log.exit_code}"
    # A script that failed is worth reading in full; one that did its work is known by its name.
    command, more, _ = log.command.partition("\n")
    if log.exit_code:
        command = log.command.replace("\n", "\n  | ")
    elif more:
        command += " …"
    head = f"{at} {log.machine} {log.step} [{mark}, {duration(log.seconds)}] {command}"
    sys.stdout.write(head.rstrip() + "\n")
    for line in log.output.splitlines():
        sys.stdout.write(f"    {line}\n")


def _print(prefix: str, output: str) -> None:
    if not prefix:
        sys.stdout.write(output)
        return
    for line in output.splitlines():
        sys.stdout.write(f"{prefix}: {line}\n")


def _exit_code(codes: list[int]) -> int:
    if len(codes) == 1:
        return codes[0]
    if not any(codes):
        return 0
    return PARTLY if 0 in codes else FAILED
