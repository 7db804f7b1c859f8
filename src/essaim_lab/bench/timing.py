"""Run a command and say what it cost: seconds on the wall, seconds of CPU of its whole tree."""

from __future__ import annotations

import ctypes
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from essaim_lab.bench import processes
from essaim_lab.bench.rows import CannotRunError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_LAST_LINES = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A command that has ended."""

    command: str
    wall: float
    cpu: float  #: user and system, of it and of everything it started
    code: int
    out: str
    err: str
    left: tuple[int, ...] = ()  #: processes it left behind, when they were asked for
    stopped: bool = False  #: it was ended because its time was over

    def require(self) -> Measured:
        """Itself when the command succeeded; CannotRunError with its last words otherwise."""
        if self.code == 0:
            return self
        words = (self.err + self.out).strip().splitlines()[-_LAST_LINES:]
        ended = f"was stopped after {self.wall:.0f} s" if self.stopped else f"ended {self.code}"
        raise CannotRunError("\n    ".join([f"`{self.command}` {ended}", *words]))


def timed(
    command: Sequence[str | Path],
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    within: float = 300.0,
    adopt: bool = False,
) -> Measured:
    """Run a command to its end, or until `within` seconds are over.

    With `adopt`, what it leaves in the background counts too and is listed as `left`.
    """
    words = [str(word) for word in command]
    before = processes.children_of(os.getpid()) if adopt else set()
    with adopting(adopt), tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=cwd,
            env=dict(environ) if environ is not None else None,
            start_new_session=True,
        )
        status, cpu, stopped = _await(process.pid, within)
        wall = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        left: tuple[int, ...] = ()
        if adopt:
            more, left = _left_behind(before)
            cpu += more
        return Measured(
            command=shlex.join(words),
            wall=wall,
            cpu=cpu,
            code=process.returncode,
            out=_text(out),
            err=_text(err),
            left=left,
            stopped=stopped,
        )


def end(pids: Sequence[int]) -> None:
    """End processes that a command of ours left behind, and wait until they are gone."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue


def best(times: int, *each: Callable[[], float]) -> list[float]:
    """Give the least of several measurements of each: what other work did not disturb.

    They are taken by turns, so that a busy moment hits all of them alike.
    """
    turns = [[once() for once in each] for _ in range(times)]
    return [min(column) for column in zip(*turns, strict=True)]


def clock(work: Callable[[], object]) -> float:
    """Seconds a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _await(pid: int, within: float) -> tuple[int, float, bool]:
    watch = os.pidfd_open(pid)
    stopped = False
    try:
        if not select.select([watch], [], [], within)[0]:
            stopped = True
            os.killpg(pid, signal.SIGKILL)
    except BaseException:
        os.killpg(pid, signal.SIGTERM)
        os.wait4(pid, 0)
        raise
    finally:
        os.close(watch)
    _, status, used = os.wait4(pid, 0)
    return status, used.ru_utime + used.ru_stime, stopped


def _left_behind(before: set[int]) -> tuple[float, tuple[int, ...]]:
    """CPU seconds of children that were not ours before, and those of them that still live."""
    cpu, alive = 0.0, []
    for pid in processes.children_of(os.getpid()) - before:
        found = processes.tree([pid])
        cpu += sum(one.cpu for one in found)
        if any(one.pid == pid and one.state == "Z" for one in found):
            os.waitpid(pid, 0)
        else:
            alive.append(pid)
    return cpu, tuple(alive)


@contextmanager
def adopting(wanted: bool = True) -> Iterator[None]:  # noqa: FBT001, FBT002 - a mere switch
    """Become the parent of whatever our children abandon, so that it can be counted."""
    if not (wanted and sys.platform == "linux"):
        yield
        return
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        library.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
