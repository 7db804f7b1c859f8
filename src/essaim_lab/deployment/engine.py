"""A Docker engine of our own: started by hand, below one folder, and gone without a trace."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from typing_extensions import override

from essaim.model.errors import SetupError

#: Programs, and the Debian packages they come from.
NEEDED = {"dockerd": "docker.io", "docker-compose": "docker-compose", "iptables": "iptables"}
START_WITHIN = STOP_WITHIN = 60.0
BUILD_WITHIN = 900.0


class Docker:
    """An engine whose state is below `place`.  It leaves the host's packet filter alone."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.socket = place / "docker.sock"
        self._pid = place / "docker.pid"
        self._log = place / "docker.log"
        # One engine is meant, whatever the user's own settings say.
        kept = {key: value for key, value in os.environ.items() if not key.startswith("DOCKER_")}
        self.environ = {**kept, "DOCKER_HOST": f"unix://{self.socket}", "DOCKER_BUILDKIT": "0",
                        "DOCKER_CONFIG": str(place / "config"), "NO_PROXY": "*"}  # fmt: skip

    def start(self) -> None:
        """Run the engine unless it runs; it goes on when this process ends."""
        need(NEEDED)
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._running() is None:
            self._pid.unlink(missing_ok=True)
            words = [
                "dockerd", "--host", f"unix://{self.socket}", "--pidfile", str(self._pid),
                "--data-root", str(self.place / "data"), "--exec-root", str(self.place / "exec"),
                "--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-masq=false",
            ]  # fmt: skip
            with self._log.open("wb") as log:
                subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        deadline = time.monotonic() + START_WITHIN
        while not self._answers():
            if time.monotonic() > deadline:
                tail = self._log.read_text(errors="replace")[-2000:]
                raise SetupError(f"the Docker engine does not answer after {START_WITHIN:g} s:\n"
                                 f"{tail}", hint="are you root?")  # fmt: skip
            time.sleep(0.2)

    def stop(self) -> None:
        """End every container and the engine, and remove all it kept."""
        pid = self._running()
        if pid is not None:
            with contextlib.suppress(subprocess.SubprocessError):
                self._empty()
            _end(pid)
        for mount in _mounts_below(self.place):
            subprocess.run(["umount", mount], check=False)
        shutil.rmtree(self.place, ignore_errors=True)

    def _empty(self) -> None:
        for listed, remove in (
            (["ps", "--all", "--quiet"], ["rm", "--force", "--volumes"]),
            (["network", "ls", "--quiet", "--filter", "type=custom"], ["network", "rm"]),
        ):
            if found := self.run(*listed).split():
                self.run(*remove, *found)

    def run(self, *words: str, stdin: IO[bytes] | None = None, within: float = BUILD_WITHIN) -> str:
        """Run `docker`; gives what it printed, CalledProcessError with what it said otherwise."""
        return call(["docker", *words], self.environ, stdin=stdin, within=within)

    def load(
        self, root: Path, name: str, *, files: Sequence[Path] = (), changes: Sequence[str] = ()
    ) -> None:
        """Make an image of a root file system, with more files at its top."""
        packing = ["tar", "--create", "--directory", str(root), "."]
        for file in files:
            packing += ["--directory", str(file.parent), file.name]
        with subprocess.Popen(packing, stdout=subprocess.PIPE) as tar:
            options = [word for change in changes for word in ("--change", change)]
            self.run("import", *options, "-", name, stdin=tar.stdout)
        if tar.returncode:
            raise SetupError(f"{root} cannot be packed: tar ended with {tar.returncode}")

    def _answers(self) -> bool:
        try:
            self.run("version", within=10)
        except subprocess.SubprocessError:
            return False
        return True

    def _running(self) -> int | None:
        """The engine's process; None when it is not there."""
        try:
            pid = int(self._pid.read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if str(self._pid).encode() in words else None


def call(
    words: Sequence[str],
    environ: dict[str, str],
    *,
    stdin: IO[bytes] | None = None,
    within: float = BUILD_WITHIN,
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
        said = (done.stderr or done.stdout).decode(errors="replace")[-3000:]
        raise CommandError(done.returncode, list(words), done.stdout, said)
    return done.stdout.decode(errors="replace")


class CommandError(subprocess.CalledProcessError):
    """A program that failed, with what it said."""

    @override
    def __str__(self) -> str:
        return f"{' '.join(map(str, self.cmd[:6]))} … ended with {self.returncode}:\n{self.stderr}"


def need(programs: dict[str, str]) -> None:
    """See to it that programs are there: root installs their packages, others are told to."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    missing = sorted({pack for tool, pack in programs.items() if not shutil.which(tool, path=path)})
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        names = " ".join(missing)
        raise SetupError(f"not installed: {names}", hint=f"sudo apt-get install {names}")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    call(["apt-get", "update", "-qq"], environ)
    call(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], environ)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_WITHIN
    while _alive(pid):
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _mounts_below(place: Path) -> list[str]:
    """What the engine has left mounted there, deepest first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted((each for each in points if each.startswith(f"{place}/")), reverse=True)
