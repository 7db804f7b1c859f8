"""A Docker engine of our own: in namespaces of its own, below one folder, gone without a trace.

Its bridges, mounts and processes are in namespaces that end with it.  So nothing of the host is
changed: neither its packet filter (whose rules, such as another engine's, do not reach ours) nor
its routes, nor what it has below /run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from essaim.model.errors import SetupError
from essaim_lab.computer import need
from essaim_lab.deployment.commands import call

#: Programs, and the Debian packages they come from.
NEEDED = {
    "dockerd": "docker.io", "docker": "docker.io", "docker-compose": "docker-compose",
    "tini": "tini", "iptables": "iptables", "ip": "iproute2", "unshare": "util-linux",
}  # fmt: skip
START_WITHIN = STOP_WITHIN = 120.0
BUILD_WITHIN = 900.0
#: Run as the first process of the engine's namespaces.  The engine would find another one's
#: containerd below /run and use it, and leave folders there.
INSIDE = 'mount -t tmpfs tmpfs /run && ip link set lo up && exec tini -- "$@"'
NAMESPACES = ("unshare", "--mount", "--propagation", "slave", "--net", "--ipc", "--pid", "--fork",
              "--kill-child", "--mount-proc", "sh", "-c", INSIDE, "sh")  # fmt: skip


class Docker:
    """An engine whose state is below `place`."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.socket = place / "docker.sock"
        self._log = place / "docker.log"
        #: What this process has started, rather than one before it.
        self._started: list[subprocess.Popen[bytes]] = []
        self._cgroup = f"essaim-{hashlib.sha256(str(place).encode()).hexdigest()[:12]}"
        # One engine is meant, whatever the user's own settings say.
        kept = {key: value for key, value in os.environ.items() if not key.startswith("DOCKER_")}
        self.environ = {**kept, "DOCKER_HOST": f"unix://{self.socket}", "DOCKER_BUILDKIT": "0",
                        "DOCKER_CONFIG": str(place / "config"), "NO_PROXY": "*"}  # fmt: skip

    def start(self) -> bool:
        """Run the engine unless it runs; it goes on when this process ends.  Whether it was not."""
        if os.geteuid() != 0:
            raise SetupError("a Docker engine needs root", hint="sudo make …")
        need(NEEDED)
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = not self._running()
        if fresh:
            self._run()
        deadline = time.monotonic() + START_WITHIN
        while not self._answers():
            ended = not self._running()
            if ended or time.monotonic() > deadline:
                tail = self._log.read_text(errors="replace")[-2000:]
                why = "ended" if ended else f"does not answer after {START_WITHIN:g} s"
                raise SetupError(f"the Docker engine {why}:\n{tail}", hint=f"see {self._log}")
            time.sleep(0.2)
        return fresh

    def _run(self) -> None:
        words = [
            "dockerd", "--host", f"unix://{self.socket}", "--pidfile", str(self.place / "pid"),
            "--data-root", str(self.place / "data"), "--exec-root", str(self.place / "exec"),
            "--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-masq=false",
            # systemd, if there is one, does not know processes by the numbers they have inside.
            "--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", f"/{self._cgroup}",
        ]  # fmt: skip
        self.socket.unlink(missing_ok=True)
        (self.place / "pid").unlink(missing_ok=True)
        path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        with self._log.open("wb") as log:
            self._started.append(
                subprocess.Popen(
                    [*NAMESPACES, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "PATH": path},
                    start_new_session=True,
                )
            )

    def stop(self) -> None:
        """End the engine with all that runs in it, and remove all it kept."""
        deadline = time.monotonic() + STOP_WITHIN
        while outer := self._running():
            if time.monotonic() > deadline:
                raise SetupError(f"the Docker engine does not end: {outer}")
            # The first process inside takes every other with it, and only then is gone itself.
            for pid in [inner for each in outer for inner in _children(each)] or outer:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        while self._started:
            self._started.pop().wait(STOP_WITHIN)
        for group in self._cgroups():
            with contextlib.suppress(OSError):
                group.rmdir()
        shutil.rmtree(self.place, ignore_errors=True)

    def left(self) -> list[str]:
        """Name what there still is of it on this computer."""
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return [
            *(f"process {pid}" for pid in self._running()),
            *(f"mount {each}" for each in mounts if each.startswith(f"{self.place}/")),
            *(f"cgroup {each}" for each in self._cgroups()),
            *([f"folder {self.place}"] if self.place.exists() else []),
        ]

    def inner(self) -> int:
        """The first process inside; all others end with it."""
        (outer,) = self._running()
        (found,) = _children(outer)
        return found

    def beside(self, words: Sequence[str], fds: Sequence[int] = ()) -> None:
        """Run a program with the engine's network, until it ends."""
        into = ["nsenter", "--target", str(self.inner()), "--net", "--pid"]
        self._started.append(
            subprocess.Popen(
                [*into, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,
            )
        )

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

    def _running(self) -> list[int]:
        """The process that made the namespaces and waits for them; none when nothing runs."""
        return [
            pid
            for pid, words in _processes()
            if words[:1] == [b"unshare"] and f"unix://{self.socket}".encode() in words
        ]

    def _cgroups(self) -> list[Path]:
        """Its control groups, deepest first: one tree, or one for each controller."""
        top = Path("/sys/fs/cgroup")
        trees = [each for each in (top, *top.glob("*")) if (each / self._cgroup).is_dir()]
        found = [group for each in trees for group in _folders(each / self._cgroup)]
        return sorted(found, reverse=True)


def _folders(top: Path) -> list[Path]:
    return [Path(path) for path, _folders, _files in os.walk(top)]


def _processes() -> Iterator[tuple[int, list[bytes]]]:
    """Every process with its command line; those that have ended have none."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
