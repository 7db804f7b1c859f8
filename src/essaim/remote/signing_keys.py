"""Secrets that the processes of a control plane sign with: files, never rows of the database.

Each kind is one file that holds two keys: the current one, and the one before it, which is still
believed for a while.  Every process looks whether the file has changed whenever it needs a key, so
a rotation needs no restart.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from essaim.model.errors import SetupError

if TYPE_CHECKING:
    from pathlib import Path

#: Seconds for which a new key is only believed, so that every process has read it before one signs.
SIGNS_AFTER = 5.0
SIZE = 32


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A secret, named after itself."""

    secret: bytes = field(repr=False)
    since: float = 0.0  #: when it begins to sign, in seconds since 1970
    kid: str = field(init=False, compare=False)  #: its name, which says nothing about the secret

    def __post_init__(self) -> None:
        named = hashlib.sha256(b"essaim key " + self.secret).hexdigest()[:16]
        object.__setattr__(self, "kid", named)


@dataclass(frozen=True, slots=True)
class Pair:
    """What one file holds."""

    current: SigningKey
    previous: SigningKey | None = None

    def signing(self, now: float) -> SigningKey:
        """The key to sign with."""
        if self.previous is not None and now < self.current.since:
            return self.previous
        return self.current

    def believed(self, now: float, keep: float) -> tuple[SigningKey, ...]:
        """The keys whose signatures count; the one before only for so many seconds."""
        if self.previous is None or now > self.current.since + keep:
            return (self.current,)
        return (self.current, self.previous)


class SigningKeys:
    """The keys of one kind.  Safe to share between threads.

    `stored` gives the secret that an earlier release left in the database: while there is one and
    no file, it is the only key.  `keep` is how many seconds the one before is believed.
    """

    def __init__(self, path: Path, *, stored: Callable[[], bytes | None], keep: float) -> None:
        self.path = path
        self.keep = keep
        self._stored = stored
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] = ()
        self._pair: Pair | None = None
        self._in_database: SigningKey | None = None

    def signing(self) -> SigningKey:
        """Give the key to sign with; it is made when there is none."""
        pair = self._read()
        return self._old() if pair is None else pair.signing(time.time())

    def believed(self) -> tuple[SigningKey, ...]:
        """Give the keys whose signatures count, the newest first."""
        pair = self._read()
        return (self._old(),) if pair is None else pair.believed(time.time(), self.keep)

    @property
    def in_database(self) -> bool:
        """Whether the key is still where an earlier release keeps it."""
        return self._read() is None

    def held(self) -> Pair | None:
        """Give what the file holds; None when it was not made yet."""
        return self._load()

    def rotate(self, *, forget: bool = False) -> Pair:
        """Put a new key in the place of the current one, which becomes the one before.

        With `forget` there is none before: what it signed counts no more from now on.
        """
        before = self.signing()
        if forget:
            pair = Pair(SigningKey(secrets.token_bytes(SIZE), time.time()))
        else:
            pair = Pair(SigningKey(secrets.token_bytes(SIZE), time.time() + SIGNS_AFTER), before)
        _draft(self.path, pair).replace(self.path)
        return pair

    def _read(self) -> Pair | None:
        """Return what the file holds; None while the database's key counts."""
        pair = self._load()
        if pair is not None or self._in_database is not None:
            return pair
        with self._lock:
            if not self.path.exists():
                secret = self._stored()
                if secret is not None:
                    self._in_database = SigningKey(secret)
                    return None
                self._make()
        return self._load()

    def _old(self) -> SigningKey:
        assert self._in_database is not None  # noqa: S101 - `_read` found no file
        return self._in_database

    def _load(self) -> Pair | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return self._pair  # what was read once goes on: whoever took it away has a reason
        except OSError as error:
            raise _unreadable(self.path, error) from error
        seen = (found.st_mtime_ns, found.st_ino, found.st_size)
        if seen != self._seen:
            try:
                pair = _parse(json.loads(self.path.read_text(encoding="ascii")))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise _unreadable(self.path, error) from error
            # The pair first: whoever sees the new mark must find what belongs to it.
            self._pair = pair
            self._seen = seen
        return self._pair

    def _make(self) -> None:
        draft = _draft(self.path, Pair(SigningKey(secrets.token_bytes(SIZE), time.time())))
        # Unlike a rename, a link never replaces the file another process has just made.
        with contextlib.suppress(FileExistsError):
            os.link(draft, self.path)
        draft.unlink()


def _draft(path: Path, pair: Pair) -> Path:
    """Write a pair beside the file, for nobody to read but whom its folder is shared with."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    written = {"current": _plain(pair.current), "previous": _plain(pair.previous)}
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        if path.parent.stat().st_mode & stat.S_IRGRP:  # processes of several users share it
            os.fchmod(file.fileno(), 0o640)
        json.dump(written, file)
        file.flush()
        os.fsync(file.fileno())
    return draft


def _plain(key: SigningKey | None) -> dict[str, Any] | None:
    return None if key is None else {"secret": key.secret.hex(), "since": key.since}


def _parse(found: dict[str, Any]) -> Pair:
    current, previous = (
        None if each is None else SigningKey(bytes.fromhex(each["secret"]), float(each["since"]))
        for each in (found["current"], found["previous"])
    )
    if current is None:
        raise ValueError("there is no current key in it")
    return Pair(current, previous)


def _unreadable(path: Path, error: Exception) -> SetupError:
    return SetupError(
        f"{path} cannot be read: {error}",
        hint="run essaim as the user who owns it, or bring it back from a backup",
    )
