"""`ssh-config`: names of machines for plain ssh, scp, rsync, editors."""

from __future__ import annotations

import os
import pwd
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from essaim.cli.access import Way, as_value, known_hosts, remembered_all
from essaim.cli.output import say
from essaim.cli.session import client_home, only_one, write_private
from essaim.model.errors import EssaimError, SetupError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from essaim.usecases.services import Services

STACKS, LEASES = "stacks.conf", "leases.conf"
#: Leases that have names, the newest first: those that ended say so when they are entered.
MOST_LEASES = 200
_COMMENT = "# Names of Essaim's machines; `essaim ssh-config --uninstall` removes these two lines."
#: Characters that mean something in the pattern of an Include.
_PATTERN = re.compile(r"[*?\[\]\"\\\n]")


def ssh_config(
    install: Annotated[
        bool, typer.Option("--install", help="Let ~/.ssh/config include them, always current.")
    ] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Take that out of ~/.ssh/config again.")
    ] = False,
) -> None:
    """Print ssh_config blocks, so that machines have names in every program that uses ssh.

    A machine of a stack is STACK.MACHINE, one of a lease LEASE or LEASE.2.
    Keys, host keys and the way there are all in the block.

    [bold]essaim ssh-config --install[/bold], then for example

    [bold]ssh slurm.nodes-2[/bold]

    [bold]rsync -a data/ slurm.controller:data/[/bold]

    [bold]code --remote ssh-remote+l-3k9x2m7q /home/l-3k9x2m7q[/bold]

    With --install one line in ~/.ssh/config includes files that `up`, `down`
    and `rent` keep current.  --uninstall removes line and files.
    """
    from essaim.cli.stacks import control_plane

    if install and uninstall:
        raise typer.BadParameter("--install or --uninstall, not both")
    if uninstall:
        _uninstall()
        return
    with control_plane() as app:
        blocks = stack_blocks(app)
    if not install:
        typer.echo("\n".join([*blocks, *lease_blocks()]), nl=bool(blocks))
        return
    folder = _folder()
    line = _include(folder)
    folder.mkdir(mode=0o700, exist_ok=True)
    _write(folder / STACKS, blocks)
    _write(folder / LEASES, lease_blocks())
    config = _user_config()
    added = _edit(config, line, add=True)
    say(f"{config} {'now includes' if added else 'includes'} the names of your machines")
    own = Path(pwd.getpwuid(os.getuid()).pw_dir)
    if own.resolve() != Path.home().resolve():
        say(f"  → ssh reads {own}/.ssh/config: HOME is another folder here; use ssh -F {config}")


def refresh_stacks(services: Services) -> None:
    """Bring the names of stacks up to date, if they are installed."""
    folder = _folder()
    if folder.is_dir():
        with suppress(OSError, EssaimError):  # the command that calls this has done its work
            _write(folder / STACKS, stack_blocks(services))


def refresh_leases() -> None:
    """Bring the names of leases up to date, if they are installed."""
    folder = _folder()
    if folder.is_dir():
        with suppress(OSError, EssaimError):
            _write(folder / LEASES, lease_blocks())


def stack_blocks(services: Services) -> list[str]:
    """Give one block for each machine of every stack."""
    from essaim.usecases import machines as use

    blocks = []
    for stack in services.stacks.list_stacks():
        with suppress(EssaimError):  # one whose site is unknown here now
            for name, options in use.ssh_options(services, stack):
                blocks.append(_block([f"{name.stack}.{name.machine}"], options))
    return blocks


def lease_blocks() -> list[str]:
    """Give one block for each machine of every lease that was rented or looked at from here."""
    blocks = []
    for lease, way in remembered_all()[:MOST_LEASES]:
        for number in range(1, way.machines + 1):
            names = [lease, f"{lease}.1"] if number == 1 else [f"{lease}.{number}"]
            blocks.append(_block(names, _lease_options(way, number)))
    return blocks


def _lease_options(way: Way, number: int) -> Mapping[str, str]:
    options = {"HostName": way.host, "Port": str(way.port), "User": way.user(number)}
    if way.identity:
        options |= {"IdentityFile": as_value(Path(way.identity)), "IdentitiesOnly": "yes"}
    if way.host_key:
        options |= {
            "UserKnownHostsFile": as_value(known_hosts()),
            "StrictHostKeyChecking": "yes",
        }
    return options


def _block(names: Iterable[str], options: Mapping[str, str]) -> str:
    lines = [f"    {name} {value}" for name, value in options.items()]
    return "\n".join([f"Host {' '.join(names)}", *lines]) + "\n"


def _folder() -> Path:
    return client_home() / "ssh_config.d"


def _include(folder: Path) -> str:
    text = str(folder.absolute())
    if _PATTERN.search(text):
        raise SetupError(f"ssh cannot include {text!r}", hint="choose another ESSAIM_HOME")
    return f'Include "{text}/*.conf"'


def _write(path: Path, blocks: Iterable[str]) -> None:
    with only_one(path.with_suffix(".lock")):
        write_private(path, "\n".join(blocks))


def _user_config() -> Path:
    return Path.home() / ".ssh" / "config"


def _uninstall() -> None:
    folder = _folder()
    removed = _edit(_user_config(), _include(folder), add=False)
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()
    say(f"{_user_config()} {'no longer includes' if removed else 'does not include'} them")


def _edit(config: Path, line: str, *, add: bool) -> bool:
    """Put our line on top of a file, or remove it; says whether that changed anything.

    On top, because below a Host it would count for that host alone.
    """
    config = config.resolve()  # a link into somebody's dotfiles stays one
    before = config.read_text(encoding="utf-8", errors="surrogateescape") if config.exists() else ""
    lines = before.splitlines(keepends=True)
    present = any(each.strip() == line for each in lines)
    if present == add:
        return False
    if add:
        after = f"{_COMMENT}\n{line}\n" + (f"\n{before}" if before else "")
    else:
        after = "".join(_without(lines, line))
    config.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = config.stat().st_mode & 0o777 if config.exists() else 0o600
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", errors="surrogateescape", dir=config.parent, delete=False
    ) as file:
        file.write(after)
    draft = Path(file.name)
    draft.chmod(mode)
    draft.replace(config)
    return True


def _without(lines: list[str], line: str) -> Iterator[str]:
    """Give all lines but ours: the comment, the Include, and the empty one that followed."""
    ours = False
    for number, each in enumerate(lines):
        follows = lines[number + 1].strip() if number + 1 < len(lines) else ""
        if each.strip() == line or (each.strip() == _COMMENT and follows == line):
            ours = True
        elif ours and not each.strip():
            ours = False
        else:
            ours = False
            yield each
