"""Programs run to their end, and the packages they come from."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from typing_extensions import override

WITHIN = 900.0
#: Signals that ask to end: Ctrl-C, `kill`, a terminal that was closed.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Characters of what a program said that are kept.
KEPT = 3000


class CommandError(subprocess.CalledProcessError):
    """A program that failed, with what it said."""

    @override
    def __str__(self) -> str:
        return f"{' '.join(map(str, self.cmd[:6]))} … ended with {self.returncode}:\n{self.stderr}"


def call(
    words: Sequence[str],
    environ: dict[str, str],
    *,
    stdin: IO[bytes] | None = None,
    within: float = WITHIN,
    cwd: Path | None = None,
) -> str:
    """Run a program to its end; what it said is in the error when that is bad."""
    done = subprocess.run(
        words,
        stdin=stdin or subprocess.DEVNULL,
        capture_output=True,
        timeout=within,
        env=environ,
        cwd=cwd,
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace")[-KEPT:]
        raise CommandError(done.returncode, list(words), done.stdout, said)
    return done.stdout.decode(errors="replace")


def follow(words: Sequence[str], environ: dict[str, str], line: Callable[[str], None]) -> None:
    """Run a program to its end and give each line it says while it runs."""
    said = ""
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            for each in process.stdout:
                said = (said + each)[-KEPT:]
                line(each.rstrip())
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise CommandError(process.returncode, list(words), None, said)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Do not let anybody stop what is done meanwhile."""
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in STOPS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
