"""How a command becomes a line for a far shell: quoted, limited in time, ended with its channel."""

from __future__ import annotations

import base64
import math
import re
import shlex
from typing import TYPE_CHECKING

from essaim.model.errors import RejectedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

#: Bytes sshd can pass to a shell as one argument, less some room.
LONGEST = 128 * 1024 - 1024

#: Seconds the far side waits longer than we do, and between SIGTERM and SIGKILL.
GRACE = 5

# sshd does not end a command whose channel is gone, so it would outlive a time-out, an interrupt
# or a lost network.  Here the channel's otherwise unused stdin is a life line: a watcher reads it,
# and at its end terminates the command, unless that has ended by itself: then what it left in its
# process group are daemons.  The command itself is not put in the background, for then the shell
# would make it and every daemon it starts ignore SIGINT.  The watcher cannot hit a stranger: it
# belongs to the process group `$$`, so that number is not given out anew.
# `timeout` is for the case that the network is lost and sshd does not notice, and kills what does
# not care for SIGTERM.
_LIFE_LINE = (
    "exec 3<&0 </dev/null; "
    "(read -r x <&3; kill -0 $$ && { kill -TERM -$$ || kill $$; }) >/dev/null 2>&1 & "
    "exec 3<&-; "
)
# The script travels in base64 and is handed on in a variable that it does not see: were it legible
# in the process list, a script with `pgrep -f NAME` would always find itself.
_DECODE = 'essaim=$(printf %s "$3" | base64 -d) || exit; export essaim; '
# Where `$$` leads no process group, as under sudo or dropbear, it becomes the first of its own.
_START = """essaim_own=; kill -0 -$$ 2>/dev/null || essaim_own=setsid
exec $essaim_own timeout -k "$1" "$2" sh -c 'eval "unset essaim
$essaim"'"""


def far_line(
    command: Sequence[str] | str,
    *,
    env: Mapping[str, str],
    become: Sequence[str],
    within: float,
    stdin: bool,
) -> str:
    """Give the line sshd hands to the login shell; with `stdin` the command reads the channel."""
    script = base64.b64encode(far_script(command, env).encode()).decode()
    program = _DECODE + ("" if stdin else _LIFE_LINE) + _START
    limit = math.ceil(within) + GRACE
    line = shlex.join([*become, "sh", "-c", program, "essaim", str(GRACE), str(limit), script])
    if len(line) > LONGEST:
        raise RejectedError(
            f"a command of {len(line)} bytes is longer than Linux takes ({LONGEST})",
            hint="put it in a file, or give the long part on its standard input",
        )
    return f"exec {line}"


def far_script(command: Sequence[str] | str, env: Mapping[str, str]) -> str:
    """Give a command as a script of its own that has these variables."""
    if not command:
        raise RejectedError("there is no command to run")
    # A program is started by `exec`, so that it is never a builtin or a function of the shell.
    body = command if isinstance(command, str) else f"exec {shlex.join(command)}"
    exports = "".join(f"export {_name(name)}={shlex.quote(env[name])}\n" for name in env)
    script = exports + body
    if "\0" in script:
        raise RejectedError("a command cannot carry a NUL character")
    try:
        script.encode()
    except UnicodeEncodeError as exc:
        raise RejectedError(f"a command must be UTF-8: {exc}") from exc
    return script


def _name(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise RejectedError(f"{name!r} cannot be the name of an environment variable")
    return name
