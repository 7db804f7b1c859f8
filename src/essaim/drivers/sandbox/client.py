"""The driver's side of a keeper: start one if need be, ask it, raise what it answers."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.drivers.sandbox import dial, doctor
from essaim.model.errors import (
    EssaimError,
    RejectedError,
    SetupError,
    TransientError,
    UnknownError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from essaim.drivers.sandbox.files import Layout

_ANSWER_SECONDS = 120.0
_QUICK_SECONDS = 30.0  #: for what the keeper answers from memory
_START_SECONDS = 60.0
_LOG_LIMIT = 1 << 20
_KINDS: dict[str, type[EssaimError]] = {
    "transient": TransientError,
    "rejected": RejectedError,
    "unknown": UnknownError,
    "setup": SetupError,
}


class GoneError(Exception):
    """No keeper runs for the stack, or there is no such stack."""


def is_rootless() -> bool:
    """Whether this process must use a user namespace."""
    return os.geteuid() != 0


def ask(layout: Layout, op: str, **values: object) -> tuple[dict[str, Any], list[int]]:
    """Ask the keeper; GoneError when none runs."""
    seconds = _QUICK_SECONDS if op in ("list", "dial") else _ANSWER_SECONDS
    try:
        answer, fds = dial.ask(str(layout.root), {"op": op, **values}, seconds)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        raise GoneError from error
    except OSError as error:
        if op == "close" and isinstance(error, ConnectionError):
            raise GoneError from error  # somebody else has closed it
        raise TransientError(
            f"sandbox {layout.root.name}: the keeper did not answer `{op}`: {error}",
            hint=f"see {layout.log}",
        ) from error
    if "error" in answer:
        raise _KINDS[answer["error"]](answer["what"], hint=answer["hint"])
    return answer, fds


def ask_or_start(layout: Layout, op: str, **values: object) -> None:
    """Ask the keeper, after starting one when none runs; GoneError when there is no such stack."""
    try:
        ask(layout, op, **values)
    except GoneError:
        start(layout)
    else:
        return
    try:
        ask(layout, op, **values)
    except GoneError as error:
        raise TransientError(
            f"sandbox {layout.root.name}: the keeper ended at once", hint=f"see {layout.log}"
        ) from error


@contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """Be the only one to start a keeper or remove the stack; GoneError when it is not there."""
    while True:
        try:
            fd = os.open(layout.start_lock, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError as error:
            raise GoneError from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # Whoever held it may have removed the stack, and another made it anew.
            if _same(fd, layout.start_lock):
                yield
                return
        finally:
            os.close(fd)


def _same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def start(layout: Layout) -> None:
    """Start the keeper, whoever else tries the same.  Nothing if one runs."""
    with locked(layout):
        if not layout.network.exists():
            raise GoneError
        try:
            ask(layout, "list")
        except GoneError:
            _launch(layout)


def _launch(layout: Layout) -> None:
    with suppress(FileNotFoundError):
        if layout.log.stat().st_size > _LOG_LIMIT:
            layout.log.unlink()
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        try:
            with layout.log.open("ab") as log:
                begin = log.tell()
                subprocess.run(
                    _command(layout, writer),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[writer],
                    cwd="/",
                    env={"PATH": doctor.PATH, "LANG": "C.UTF-8"},
                    check=False,
                )
        except OSError as error:
            raise SetupError(f"sandbox: the keeper cannot be started: {error}") from error
        finally:
            os.close(writer)
        if not select.select([pipe], [], [], _START_SECONDS)[0]:
            raise TransientError(
                f"sandbox {layout.root.name}: the keeper was not ready in {_START_SECONDS:.0f} s",
                hint=f"see {layout.log}",
            )
        word = pipe.read(16)
    if word == b"another":
        raise TransientError(f"sandbox {layout.root.name}: the last keeper has not ended yet")
    if word != b"ready":
        with layout.log.open("rb") as log:
            log.seek(begin)
            doctor.blame(log.read().decode(errors="replace").strip())


def _command(layout: Layout, ready: int) -> list[str]:
    user, mode = (doctor.USER_NAMESPACE, "rootless") if is_rootless() else ((), "root")
    return [
        "setsid", "--fork",  # it outlives this process and is nobody's child
        "unshare", *user, *doctor.NAMESPACES, "--kill-child", "--propagation", "private",
        sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")),
        str(layout.root), str(ready), mode,
    ]  # fmt: skip
