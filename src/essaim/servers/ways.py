"""Runs a command where a server is: on this computer, or over SSH."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from essaim.model.errors import TransientError
from essaim.model.names import MachineName
from essaim.remote.keyring import Keyring
from essaim.remote.ssh import Remote, Target

_WITHIN = 30.0


class Way(Protocol):
    """A place where commands run; its text says where that is."""

    def run(self, command: Sequence[str]) -> tuple[int, str, str]:
        """Run a program; its exit code, its stdout, and all it printed."""

    def close(self) -> None:
        """Close its connection."""


class Here:
    """This computer."""

    @override
    def __str__(self) -> str:
        return "this computer"

    def run(self, command: Sequence[str]) -> tuple[int, str, str]:
        """Run a program here."""
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_WITHIN
            )
        except subprocess.TimeoutExpired as exc:
            raise TransientError(f"{command[0]} did not end in {_WITHIN:g} s") from exc
        return done.returncode, done.stdout, done.stdout + done.stderr

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """An account of another computer, and the only host key that is believed there."""

    host: str
    host_key: str
    key: str  #: path of the private key
    user: str = "root"
    port: int = 22
    sudo: bool = False


class _OneKey(Keyring):
    """A key that somebody else made."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.parent)
        self._path = path

    @override
    def user_key(self) -> Path:
        return self._path


class There:
    """Another computer, over one SSH connection that all threads share."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._remote = Remote(_OneKey(Path(login.key).expanduser()))
        self._target = Target(
            name=MachineName("servers", login.host),
            address=login.host,
            host_key=login.host_key,
            port=login.port,
            user=login.user,
            become=("sudo", "-n") if login.sudo else (),
        )

    @override
    def __str__(self) -> str:
        return f"{self._login.user}@{self._login.host}"

    def run(self, command: Sequence[str]) -> tuple[int, str, str]:
        """Run a program there."""
        result = self._remote.run(self._target, command, within=_WITHIN)
        return result.exit_code, result.stdout, result.output

    def close(self) -> None:
        """Close the connection."""
        self._remote.close()
