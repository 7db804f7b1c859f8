"""How a command becomes a line for a far shell: quoted, limited in time, ended with its channel."""

from __future__ import annotations

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
# `timeout` is for the case that the network is lost and sshd does not notice.  It makes a group of
# `$$` where there is none yet, as under sudo, and kills what does not care for SIGTERM.
_LIFE_LINE = (
    "exec 3<&0 </dev/null; "
    "(read -r x <&3; kill -0 $$ && { kill -TERM -$$ || kill $$; }) >/dev/null 2>&1 & "
    "exec 3<&-; "
    'k=$1 t=$2 s=$3; shift 3; exec timeout -k "$k" "$t" sh -c "$s" sh "$@"'
)
_WITH_INPUT = 'k=$1 t=$2 s=$3; shift 3; exec timeout -k "$k" "$t" sh -c "$s" sh "$@"'


def far_line(
    command: Sequence[str] | str,
    *,
    env: Mapping[str, str],
    become: Sequence[str],
    within: float,
    stdin: bool,
) -> str:
    """Give the line sshd hands to the login shell; with `stdin` the command reads the channel."""
    if not command:
        raise RejectedError("there is no command to run")
    exports = "".join(f"export {_name(name)}={_quote(value)}\n" for name, value in env.items())
    # A program is started by `exec`, so that it is never a builtin or a function of the shell.
    script, words = (command, ()) if isinstance(command, str) else ('exec "$@"', tuple(command))
    program = _WITH_INPUT if stdin else _LIFE_LINE
    limit = math.ceil(within) + GRACE
    line = ["sh", "-c", program, "essaim", str(GRACE), str(limit), exports + script]
    text = "exec " + " ".join(_quote(word) for word in (*become, *line, *words))
    if len(text.encode()) > LONGEST:
        raise RejectedError(
            f"a command of {len(text.encode())} bytes is longer than Linux takes ({LONGEST})",
            hint="put it in a file, or give the long part on its standard input",
        )
    return text


def _name(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise RejectedError(f"{name!r} cannot be the name of an environment variable")
    return name


def _quote(word: str) -> str:
    if "\0" in word:
        raise RejectedError(f"a command cannot carry a NUL character: {word[:40]!r}")
    try:
        word.encode()
    except UnicodeEncodeError as exc:
        raise RejectedError(f"a command must be UTF-8: {word[:40]!r}") from exc
    return shlex.quote(word)
