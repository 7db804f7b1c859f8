"""The driver's side of a keeper: start one if need be, ask it, raise what it answers."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essaim.drivers.sandbox import dial, doctor, idmap
from essaim.drivers.sandbox.files import read
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
_QUICK_SECONDS = 60.0  #: for what the keeper answers from memory
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


def ask_or_start(layout: Layout, op: str, **values: object) -> tuple[dict[str, Any], list[int]]:
    """Ask the keeper, after starting one when none runs; GoneError when there is no such stack."""
    try:
        return ask(layout, op, **values)
    except GoneError:
        start(layout)
    try:
        return ask(layout, op, **values)
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


def _hold(layout: Layout) -> int | None:
    """Take the keeper's lock; None while a keeper, or what is left of one, has it."""
    fd = os.open(layout.keeper_lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def is_held(layout: Layout) -> bool:
    """Whether a keeper lives: one that answers, or is on its way to or from that."""
    fd = _hold(layout)
    if fd is not None:
        os.close(fd)
    return fd is None


def start(layout: Layout) -> None:
    """Start the keeper, whoever else tries the same.  Nothing if one runs."""
    with locked(layout):
        if not layout.network.exists():
            raise GoneError
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(layout):
            # Held: a keeper that somebody, killed in the act, has left behind is still starting,
            # or an old one and its machines are still ending.
            lock = _hold(layout)
            if lock is not None:
                _launch(layout, lock)
                if (read(layout.network) or {}).get("internet"):
                    with suppress(EssaimError):  # its machines run without; `up` says so
                        open_internet(layout)
                return
            if time.monotonic() > deadline:
                raise TransientError(
                    f"sandbox {layout.root.name}: another keeper neither answers nor ends",
                    hint=f"see {layout.log}",
                )
            time.sleep(0.02)


def open_internet(layout: Layout) -> None:
    """Open the stack's way out: the keeper's sockets, and a program here that serves them."""
    answer, fds = ask(layout, "internet", name="", on=True)
    if "internet" not in answer:
        raise RejectedError(
            f"stack {layout.root.name}: an earlier version of Essaim holds it and has no way out",
            hint=f"take the stack down first: essaim down {layout.root.name}",
        )
    program = str(Path(__file__).with_name("uplink.py"))
    try:
        with layout.log.open("ab") as log:
            subprocess.run(
                [
                    "setsid",
                    "--fork",
                    sys.executable,
                    "-I",
                    "-S",
                    program,
                    str(fds[0]),
                    str(layout.root),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                cwd="/",
                env={"PATH": doctor.PATH, "LANG": "C.UTF-8"},
                check=True,
            )
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(f"sandbox: no internet access: {error}") from error
    finally:
        for fd in fds:
            os.close(fd)


def close_internet(layout: Layout) -> None:
    """Close the stack's way out.  Nothing if it is closed, or no keeper runs."""
    with suppress(GoneError):
        ask(layout, "internet", name="", on=False)


def _answers(layout: Layout) -> bool:
    try:
        ask(layout, "list")
    except GoneError:
        return False
    return True


def _launch(layout: Layout, lock: int) -> None:
    """Start a keeper and wait until it is ready; it takes over the lock."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        try:
            begin = _spawn(layout, lock, writer)
        except OSError as error:
            raise SetupError(f"sandbox: the keeper cannot be started: {error}") from error
        finally:
            os.close(writer)
            os.close(lock)
        if not select.select([pipe], [], [], _START_SECONDS)[0]:
            raise TransientError(
                f"sandbox {layout.root.name}: the keeper was not ready in {_START_SECONDS:.0f} s",
                hint=f"see {layout.log}",
            )
        if pipe.read(16) == b"ready":
            return
    with layout.log.open("rb") as log:
        log.seek(begin)
        said = log.read().decode(errors="replace").strip()
    doctor.blame(said)
    raise TransientError(f"sandbox {layout.root.name}: the keeper did not start: {said}")


def _spawn(layout: Layout, lock: int, ready: int) -> int:
    """Run the keeper; where in the log its words begin."""
    with suppress(FileNotFoundError):
        if layout.log.stat().st_size > _LOG_LIMIT:
            layout.log.unlink()
    with layout.log.open("ab") as log:
        begin = log.tell()
        subprocess.run(
            _command(layout, lock, ready),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[lock, ready],
            cwd="/",
            env={"PATH": doctor.PATH, "LANG": "C.UTF-8"},
            check=False,
        )
    return begin


def _command(layout: Layout, lock: int, ready: int) -> list[str]:
    user = doctor.USER_NAMESPACE if is_rootless() else ()
    mode = "rootless" if user or idmap.in_user_namespace() else "root"
    return [
        "setsid", "--fork",  # it outlives this process and is nobody's child
        # Holds the lock too, and ends after everything in its namespaces has ended.
        "unshare", *user, *doctor.NAMESPACES, "--kill-child", "--propagation", "private",
        sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")),
        str(layout.root), str(lock), str(ready), mode,
    ]  # fmt: skip
