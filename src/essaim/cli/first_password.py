"""Tells the first administrator's password: on a terminal, else in a private file, not in a log."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from essaim.cli.output import say
from essaim.model.errors import SetupError

#: The file below ESSAIM_HOME.
FILE = "admin-password"


@contextlib.contextmanager
def password_teller(home: Path, name: str, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """Give what tells a password, once the account exists.

    The file is opened before, so that no account is made whose password nobody could be told; and
    under a name of its own, so that of several processes the one that made the account writes it.
    """
    if shown:
        yield lambda password: say(f"{name}    password, shown only now: {password}")
        return
    draft, path = home / f".{FILE}-{secrets.token_hex(8)}", home / FILE
    try:
        home.mkdir(parents=True, exist_ok=True)
        number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise SetupError(
            f"the first administrator's password cannot be written to {path}: {error.strerror}",
            hint="ESSAIM_HOME must be a folder that this process may write to",
        ) from error

    def tell(password: str) -> None:
        os.write(number, f"{password}\n".encode())
        os.fsync(number)
        draft.replace(path)
        say(f"{name}    the password is in this file, for its owner alone; delete it then:")
        say(f"         {path}")

    try:
        yield tell
    finally:
        os.close(number)
        draft.unlink(missing_ok=True)
