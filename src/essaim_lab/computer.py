"""What benchmarks, deployments and tests ask of the computer they run on: programs and ports."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from essaim.model.errors import SetupError

#: Where Debian keeps programs that are not for everybody.
_ASIDE = ("/usr/sbin", "/sbin")


def which(program: str) -> str | None:
    """Give the path of a program, also of one that only administrators have on theirs.

    A path is given back if there is such a file, which may be a library.
    """
    if program.startswith("/"):
        return program if Path(program).exists() else None
    servers = sorted(str(path) for path in Path("/usr/lib/postgresql").glob("*/bin"))
    places = [os.environ.get("PATH", os.defpath), *_ASIDE, *servers]
    return shutil.which(program, path=os.pathsep.join(places))


def need(programs: Mapping[str, str]) -> None:
    """See to it that programs are there: root installs their packages, others are told to."""
    if os.geteuid() != 0:
        _install(_missing(programs))
        return
    with Path(tempfile.gettempdir(), "essaim-apt.lock").open("a") as lock:
        # A program is there before its user and its libraries are: what is found counts only while
        # nobody installs.
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not _missing(programs):
            return
        # One process at a time, of those who share this computer: apt waits for nobody who fetches
        # its lists.  Whoever came second finds what the first has installed.
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(_missing(programs))
    left = _missing(programs)
    if left:
        raise SetupError(f"not there after their packages were installed: {' '.join(left)}")


def find(program: str, package: str) -> str:
    """Give the program's path; its Debian package is installed as `need` says."""
    need({program: package})
    path = which(program)
    if path is None:
        raise SetupError(f"{program} was there a moment ago")
    return path


def free_port() -> int:
    """Give a port of the loopback that nobody listens on now, and nobody else is given.

    It lies below those the kernel gives to outgoing connections, of which there may be so many
    that one could take the port before its server does.
    """
    while True:
        port = secrets.choice(range(10_000, 32_000))
        with (
            socket.socket() as probe,
            socket.socket(socket.AF_UNIX) as claim,
            contextlib.suppress(OSError),
        ):
            probe.bind(("127.0.0.1", port))
            # A name, not a file: it is this process's for as long as it lives, and no longer.
            claim.bind(f"\0essaim-port-{port}")
            claim.detach()
            return port


def _missing(programs: Mapping[str, str]) -> list[str]:
    return sorted({package for program, package in programs.items() if which(program) is None})


def _install(packages: list[str]) -> None:
    if not packages:
        return
    names = " ".join(packages)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SetupError(f"not installed: {names}", hint=f"sudo apt-get install {names}")
    _apt("update", "-qq")
    _apt("install", "-y", "-qq", "--no-install-recommends", *packages)


def _apt(*words: str) -> None:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=600", *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-500:]
        raise SetupError(f"apt-get {' '.join(words)}: {said}", hint="see what apt says")
