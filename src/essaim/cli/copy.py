"""`cp`: files to and from machines."""

from __future__ import annotations

import errno
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from essaim.cli.carrying import FAILED, INTERRUPTED, PARTLY
from essaim.cli.output import duration, say
from essaim.cli.stacks import control_plane
from essaim.cli.tongue import said, tell
from essaim.model.errors import TransientError

if TYPE_CHECKING:
    from essaim.remote.files import FileSystem
    from essaim.remote.transfer import Location, Outcome

#: MACHINE:PATH.  A path of this computer that looks so is written ./NAME:…
REMOTE = re.compile(r"([a-z0-9][a-z0-9.-]*(?:/[a-z0-9][a-z0-9-]*)?):(.*)", re.DOTALL)
#: Seconds between two looks of the progress line.
EVERY = 0.1
_ERRORS = {
    errno.ENOENT: "copy.no_such_file",
    errno.EACCES: "copy.denied",
    errno.EPERM: "copy.denied",
    errno.ENOSPC: "copy.no_space",
    errno.EDQUOT: "copy.no_space",
    errno.ENOTDIR: "copy.not_a_directory",
    errno.EISDIR: "copy.is_a_directory",
    errno.EAGAIN: "copy.changed",
}


def cp(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC… DST", help="A path here, or STACK/MACHINE:PATH, or LEASE:PATH."
        ),
    ],
    update: Annotated[
        bool,
        typer.Option("--update", "-u", help="Skip files that are there with same size and time."),
    ] = False,
    _recursive: Annotated[  # directories need no option; who is used to it may say it
        bool, typer.Option("--recursive", "-r", hidden=True)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Copy files and directories to machines and back.

    MACHINE is STACK/MACHINE, LEASE, or LEASE.2 for its second machine.  What
    follows the colon is a path there, from the home on; nothing is the home.
    Quote patterns of the far side, so that your shell leaves them alone.

    [bold]essaim cp job.sh data/ slurm/controller:[/bold]

    [bold]essaim cp 'slurm/controller:results/*.csv' .[/bold]

    [bold]essaim cp l-3k9x2m7q:model.bin l-3k9x2m7q.2:[/bold]

    A copy that was interrupted goes on when it is typed again: large files from
    where they stopped, and with -u whole files are not copied again.  A file
    has its name only once it is whole.  Permissions and times are kept.

    Exit codes: 0 all copied, 1 nothing copied, 2 wrong usage, 4 some could not
    be copied, 130 stopped by Ctrl-C.
    """
    copy(paths, ssh_command, update=update, quiet=quiet)


def copy(
    paths: list[str],
    ssh_command: Callable[[str], list[str]],
    *,
    update: bool = False,
    quiet: bool = False,
) -> None:
    """Copy all but the last path to the last, and end the command with the exit code.

    `ssh_command` gives, for the MACHINE of MACHINE:PATH, the ssh command that opens a shell there:
    options, then the destination, no remote command.
    """
    from essaim.remote.transfer import Copier, Outcome, expand

    if len(paths) < 2:  # noqa: PLR2004 - from, to
        raise typer.BadParameter(said("copy.two"))
    if not any(REMOTE.fullmatch(each) for each in paths):
        raise typer.BadParameter(said("copy.local"))
    shown = _Shown(quiet=quiet)
    outcome = Outcome()
    try:
        with ExitStack() as stack:
            machines = _Machines(ssh_command, stack)
            *sources, destination = [machines.locate(each) for each in paths]
            copier = Copier(shown, update=update, outcome=outcome)
            copier.copy([path for each in sources for path in expand(each)], destination)
    except TransientError as error:
        shown.end()
        if outcome.bytes and not error.hint:
            error.hint = said("copy.again")
        raise
    except KeyboardInterrupt:
        shown.end()
        tell("copy.interrupted")
        sys.exit(INTERRUPTED)
    finally:
        shown.end()
    shown.conclude(outcome)
    done = outcome.copied + outcome.skipped
    sys.exit(0 if not outcome.failed else PARTLY if done else FAILED)


class _Machines:
    """One connection for each machine that a command names."""

    def __init__(self, ssh_command: Callable[[str], list[str]], stack: ExitStack) -> None:
        from essaim.remote.files import LocalFiles

        self._ssh_command = ssh_command
        self._stack = stack
        self._here = LocalFiles()
        self._there: dict[str, FileSystem] = {}

    def locate(self, text: str) -> Location:
        from essaim.remote.sftp import SftpFiles
        from essaim.remote.transfer import Location

        found = REMOTE.fullmatch(text)
        if found is None:
            return Location(self._here, text)
        name, path = found.groups()
        if name not in self._there:
            made = SftpFiles(self._ssh_command(name), name=name)
            self._there[name] = self._stack.enter_context(made)
        path = "." if path in ("", "~", "~/") else path.removeprefix("~/")
        return Location(self._there[name], path)


def ssh_command(name: str) -> list[str]:
    """The ssh command that opens a shell on a machine of a stack or a lease."""
    from essaim.cli.access import LEASE, lease_command
    from essaim.usecases import machines as use

    if LEASE.fullmatch(name):
        return lease_command(name)
    if "/" not in name:
        name = name.replace(".", "/", 1)  # as `essaim ssh-config` calls it
    with control_plane() as app:
        return use.ssh_command(app, name, [])


class _Shown:
    """What a person sees: one line on a terminal while it lasts, errors always."""

    def __init__(self, *, quiet: bool) -> None:
        self._line = not quiet and sys.stderr.isatty()
        self._began = time.monotonic()
        self._name = ""
        self._size = self._at = self._sent = 0
        self._last = 0.0
        self._open = False

    def begin(self, source: Location, size: int, done: int) -> None:
        if not self._name:
            self._began = time.monotonic()  # connecting took its time, and is no copying
        self._name, self._size, self._at = source.path, size, done
        self._show(force=size > 0)

    def advance(self, count: int) -> None:
        self._at += count
        self._sent += count
        self._show(force=False)

    def failed(self, source: Location, target: Location, error: OSError) -> None:
        self.end()
        key = _ERRORS.get(error.errno or 0)
        what = said(key) if key else error.strerror or str(error)
        about = target if error.filename and error.filename != source.path else source
        path = error.filename or about.path
        where = f"{about.files.name}:{path}" if about.files.name else path
        # A name that is no text must not end the command that reports it.
        line = f"essaim: {where}: {what}"
        say(line.encode(errors="surrogateescape").decode(errors="replace"))

    def _show(self, *, force: bool) -> None:
        now = time.monotonic()
        if not self._line or (now - self._last < EVERY and not force):
            return
        self._last = now
        rate = self._sent / max(now - self._began, 0.001)
        numbers = f"  {amount(self._at)} / {amount(self._size)}  {amount(rate)}/s"
        room = os.get_terminal_size(sys.stderr.fileno()).columns - len(numbers) - 1
        name = self._name.encode(errors="surrogateescape").decode(errors="replace")
        name = "".join(each if each.isprintable() else "?" for each in name)
        if len(name) > room > 1:
            name = "…" + name[len(name) - room + 1 :]
        sys.stderr.write(f"\r\033[K{name}{numbers}")
        sys.stderr.flush()
        self._open = True

    def end(self) -> None:
        """Clear the line."""
        if self._open:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self._open = False

    def conclude(self, outcome: Outcome) -> None:
        """Say on a terminal what was done."""
        if not self._line or not (outcome.copied or outcome.skipped):
            return
        took = duration(time.monotonic() - self._began)
        skipped = said("copy.skipped", count=outcome.skipped) if outcome.skipped else ""
        done = said("copy.done", count=outcome.copied, size=amount(outcome.bytes), took=took)
        say(done + skipped)


def amount(count: float) -> str:
    """Give a number of bytes as people say it."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:  # noqa: PLR2004 - units of a thousand
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
