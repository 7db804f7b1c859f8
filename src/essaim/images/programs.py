"""Run the programs of a build: heard line by line, logged, and ended when the build is."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from essaim.images.inside import environment
from essaim.model.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from essaim.images.builders import Job

#: Lines kept of what a program printed, and lines of it shown to a person.
_KEPT, _SHOWN = 400, 12


def run(
    command: Sequence[str],
    *,
    log: Path,
    lock: int,
    heard: Callable[[str], None] = lambda _line: None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    own_group: bool = False,
) -> tuple[int, list[str]]:
    """Run a program to its end; gives its exit code and the last lines it printed.

    It inherits `lock`, so that the lock is held until the last of what it started has ended.
    With `own_group` it does not see Ctrl-C, and may finish: for a program that ends with us.
    """
    tail: deque[str] = deque(maxlen=_KEPT)
    with (
        log.open("ab", buffering=0) as file,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment(), **(env or {})},
            cwd=cwd,
            pass_fds=[lock],
            process_group=0 if own_group else None,
        ) as process,
    ):
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            for raw in process.stdout:
                with suppress(OSError):  # when the disk is full, the program will say so too
                    file.write(raw)
                line = raw.decode(errors="replace").rstrip()
                tail.append(line)
                heard(line)
        except BaseException:
            process.kill()
            process.stdout.read()  # until the last of what it started has ended
            raise
    return process.returncode, list(tail)


def must(job: Job, *command: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Run a program that has no reason to fail but this computer; gives what it printed."""
    code, lines = run(command, log=job.log, lock=job.lock, env=env)
    if code:
        said = "\n".join(lines[-_SHOWN:])
        full = any("No space left on device" in line for line in lines)
        raise SetupError(
            f"image {job.image.name}: {_name(command)} failed:\n{said}",
            hint=f"free some space; see {job.log}" if full else f"see {job.log}",
        )
    return lines


def _name(command: Sequence[str]) -> str:
    """Tell which program that is, behind those that only start it."""
    words = [word for word in command if not word.startswith("-")]
    outer = ("setpriv", "KILL", "unshare", "private")
    return next(word for word in words if word not in outer).rpartition("/")[2]


def version(tool: str, *, option: str = "--version") -> str:
    """Tell which version of a program this computer has; empty when it has none."""
    if shutil.which(tool, path=environment()["PATH"]) is None:
        return ""
    done = subprocess.run(
        [tool, option], capture_output=True, text=True, env=environment(), check=False
    )
    return next((line.strip() for line in (done.stdout + done.stderr).splitlines() if line), "")


def disk_info(path: Path, kind: str = "") -> dict[str, Any]:
    """Ask qemu-img about a disk of that kind; SetupError when it cannot read it."""
    how = ["-f", kind] if kind else []
    done = subprocess.run(
        ["qemu-img", "info", *how, "--output=json", str(path)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    if done.returncode:
        raise SetupError(f"{path} cannot be read as a disk: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
