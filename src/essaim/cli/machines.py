"""`ssh`, `run`, `logs`."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essaim.cli.carrying import PARTLY
from essaim.cli.output import duration, print_json, say
from essaim.cli.stacks import Json, control_plane

if TYPE_CHECKING:
    from essaim.model.errors import EssaimError
    from essaim.model.runs import CommandLog
    from essaim.remote.input import Input
    from essaim.remote.ssh import Result

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

    A single argument is a command line for the shell there; several are a
    program and its arguments.
    """
    from essaim.cli.access import LEASE, enter, lease_command

    if LEASE.fullmatch(machine):
        enter(lease_command(machine, command or []))
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
    no_stdin: Annotated[
        bool, typer.Option("--no-stdin", "-n", help="Leave the standard input alone.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a command on one machine or many, and end with its exit code.

    On one machine the output is the command's own, as it comes; on several each
    line begins with the machine.  A single argument is a command line for the
    shell there; several are a program and its arguments, passed on as they are.

    [bold]essaim run slurm/controller -- "sinfo -N | sort | uniq"[/bold]

    [bold]essaim run slurm -- ls "a file"[/bold]

    What is piped in reaches the command, on several machines each of them:

    [bold]essaim run slurm/nodes -- tee /etc/motd <motd[/bold]

    In a loop that reads a list, say -n, or the command reads the list.

    Exit codes: the command's; on several machines 0 when all ended with 0,
    4 when some did, 1 when none did.
    """
    from essaim.usecases import machines as use

    with control_plane() as app, _stdin(wanted=not no_stdin) as stdin:
        _stack, machines = use.find(app, where)
        if len(machines) == 1 and not as_json:
            only = str(machines[0].name)
            given = stdin(1)
            ended = use.stream(app, only, command, within=within, stdin=given, write=_write)
            sys.exit(ended.exit_code)
        codes: list[int] = []
        found: list[dict[str, Any]] = []
        several = len(machines) > 1
        given = stdin(len(machines))
        for target, result in use.run(app, where, command, within=within, stdin=given):
            codes.append(_report(str(target.name), result, found))
            if not as_json and "output" in found[-1]:
                _print(str(target.name) if several else "", found[-1]["output"])
    if as_json:
        print_json(found)
    sys.exit(_exit_code(codes))


def _report(name: str, result: Result | EssaimError, found: list[dict[str, Any]]) -> int:
    """Keep a machine's result; gives its exit code."""
    from essaim.model.errors import EssaimError

    if isinstance(result, EssaimError):
        say(f"{name}: {result.what}")
        found.append({"machine": name, "error": result.what})
        return FAILED
    found.append(
        {
            "machine": name,
            "exit_code": result.exit_code,
            "output": result.output,
            "seconds": round(result.seconds, 3),
        }
    )
    return result.exit_code


@contextmanager
def _stdin(*, wanted: bool) -> Iterator[Callable[[int], Input | None]]:
    """Give what makes the input of so many commands; None where nothing is piped in."""
    with ExitStack() as stack:

        def make(readers: int) -> Input | None:
            from essaim.remote.input import Input

            if not wanted or not piped(0):
                return None
            return stack.enter_context(closing(Input(0, readers=readers)))

        yield make


def piped(descriptor: int) -> bool:
    """Whether something may come: it is neither closed, nor a terminal, nor /dev/null."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    if not stat.S_ISCHR(found.st_mode):
        return True
    return not os.isatty(descriptor) and found.st_rdev != Path(os.devnull).stat().st_rdev


def _write(data: bytes, stdout: bool) -> None:
    stream = sys.stdout if stdout else sys.stderr
    stream.buffer.write(data)
    stream.flush()


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
