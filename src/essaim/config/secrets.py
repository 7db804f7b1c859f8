"""Secrets are named in files and looked up at use; their values are never part of a stack."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from typing_extensions import override

from essaim.model.errors import SetupError, UnknownError

#: A name may be a path below `secrets/`, and must not climb out of it.
NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]|[./](?=[A-Za-z0-9_-]))*")

PREFIX = "!secret "


class SecretRef(str):
    """A reference to a secret; prints as it is written in YAML, `!secret NAME`."""

    __slots__ = ()

    def __new__(cls, name: str) -> Self:
        """Refer to the secret of that name."""
        return super().__new__(cls, PREFIX + name)

    @override
    def __getnewargs__(self) -> tuple[str]:
        return (self.name,)

    @property
    def name(self) -> str:
        """The name to give to `resolve_secret`."""
        return self[len(PREFIX) :]


def variable(name: str) -> str:
    """Name the environment variable that may hold a secret."""
    return "ESSAIM_SECRET_" + re.sub(r"[-/.]", "_", name).upper()


def resolve_secret(name: str, lab: Path) -> str:
    """Return a secret from the environment, or else from the lab's `secrets/` directory.

    UnknownError when there is none; SetupError when others on this computer may read its file.
    """
    value = os.environ.get(variable(name))
    if value is not None:
        return value
    file = lab / "secrets" / name
    hint = f"set {variable(name)}, or write it to {file} and chmod 600 it"
    if not NAME.fullmatch(name):
        raise UnknownError(f"{name!r} cannot be the name of a secret", hint="letters, digits, _-./")
    try:
        mode = file.stat().st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise SetupError(
                f"the secret {name} may be read by others: {file} has mode {mode & 0o777:04o}",
                hint=f"chmod 600 {file}",
            )
        return file.read_text(encoding="utf-8").removesuffix("\n")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as exc:
        raise UnknownError(f"there is no secret {name}", hint=hint) from exc
    except (PermissionError, UnicodeDecodeError) as exc:
        raise SetupError(f"the secret {name} cannot be read from {file}: {exc}") from exc


def read_secret(reference: Mapping[str, str] | None, what: str, lab: Path | None = None) -> str:
    """Return the secret of {env: NAME} or {file: PATH}; nothing for no reference.

    A path that is not absolute is one of the lab.  SetupError when the secret is not there, or when
    others on this computer may read its file.
    """
    if not reference:
        return ""
    if name := reference.get("env"):
        if value := os.environ.get(name):
            return value
        raise SetupError(f"the secret of {what} is not in the environment", hint=f"export {name}=…")
    path = (lab or Path()) / Path(reference["file"]).expanduser()
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise SetupError(
                f"the secret of {what} may be read by others: {path}", hint=f"chmod 600 {path}"
            )
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SetupError(
            f"the secret of {what} cannot be read: {exc}",
            hint=f"write it to {path} and chmod 600 it",
        ) from exc


def references(
    value: Any, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], SecretRef]]:
    """Find every reference to a secret below a value, with where it stands."""
    if isinstance(value, SecretRef):
        yield path, value
    elif isinstance(value, Mapping):
        for key, below in value.items():
            yield from references(below, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, below in enumerate(value):
            yield from references(below, (*path, str(index)))
