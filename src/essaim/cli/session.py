"""Who is logged in where: one file of one's own, safe to use from many commands at once."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from essaim.model.errors import SetupError

#: Seconds before an access token's end at which it is no longer begun anything with.
MARGIN = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A session, or what is left of one after it: the server and the name."""

    server: str
    name: str = ""
    access: str = ""
    refresh: str = ""
    expires_at: float = 0.0  #: of the access token, in the clock of this computer
    insecure: bool = False  #: http to another computer was allowed
    ca: str = ""  #: a file with certificates to trust instead of the system's

    def fresh(self, now: float) -> bool:
        """The access token will do for a request."""
        return bool(self.access) and now < self.expires_at - MARGIN


def client_home() -> Path:
    """Where the commands that talk to a server keep their files; nobody else may look."""
    from essaim.bootstrap import state_home

    home = state_home(os.environ) / "client"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"{home} cannot be made: {error.strerror}", hint="set ESSAIM_HOME to a folder of yours"
        ) from error
    return home


def read() -> Kept | None:
    """What was kept; nothing when nobody ever logged in."""
    path = client_home() / "session.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name for field in fields(Kept)}
        return Kept(**{name: value for name, value in found.items() if name in known})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise SetupError(f"{path} cannot be read: {error}", hint=f"rm {path}") from error


def write(kept: Kept) -> None:
    """Keep a session; whoever reads meanwhile sees the old one or the new one, whole."""
    write_private(client_home() / "session.json", json.dumps(asdict(kept)))


@contextmanager
def locked() -> Iterator[None]:
    """Be the only command that changes the session.

    Ctrl-C waits until this is over: a refresh token that was shown but whose successor was not
    kept would end the session.
    """
    with only_one(client_home() / "session.lock"):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Be the only command that holds this lock; it is let go however the command ends."""
    try:
        lock = path.open("w", encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_private(path: Path, text: str) -> None:
    """Write a file for nobody else, all or nothing."""
    draft = ""
    try:
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:  # 0600 from its beginning
            file.write(text)
        Path(draft).replace(path)
    except OSError as error:
        if draft:
            Path(draft).unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> SetupError:
    return SetupError(
        f"{path} cannot be written: {error.strerror}",
        hint="make room or set ESSAIM_HOME to a folder of yours",
    )
