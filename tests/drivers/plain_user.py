"""Somebody without any privilege, made for the tests and removed after them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from essaim_lab import computer

ROOT = Path(__file__).parents[2]
USER_NAMESPACE = ("unshare", "--user", "--map-auto", "--map-root-user")


@dataclass(frozen=True)
class PlainUser:
    """A new user, with the program and its tests in their home and a Python that they may run."""

    name: str
    uid: int
    gid: int
    home: Path
    python: str

    def command(self, *words: str) -> list[str]:
        become = ("setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups")
        return [*become, "--inh-caps=-all", *words]

    @property
    def env(self) -> dict[str, str]:
        code = self.home / "code"
        return {
            "HOME": str(self.home),
            "USER": self.name,
            "LOGNAME": self.name,
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": f"{code / 'src'}:{code / 'tests'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            **{k: v for k, v in os.environ.items() if k.lower().endswith("_proxy")},
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.home,
            env=self.env,
            timeout=280,
            check=False,
        )

    def run_python(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.python, "-W", "error", *words)


def need_uidmap() -> None:
    """Install what lets a plain user make machines, as the tests' preparation says."""
    computer.need({"newuidmap": "uidmap"})


@contextmanager
def plain_user(suffix: str = "") -> Iterator[PlainUser]:
    need_uidmap()
    name = f"essaim-drv{suffix}-{os.getpid()}"
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", name], check=True)
    who = pwd.getpwnam(name)
    home = Path(who.pw_dir)
    try:
        user = PlainUser(name, who.pw_uid, who.pw_gid, home, "/usr/bin/python3")
        for part in ("src/essaim", "tests/drivers", "tests/images"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, home / "code" / part, ignore=ignored)
        subprocess.run(["chown", "-R", f"{name}:", str(home / "code")], check=True)
        # Through `env`: setpriv itself could still reach into root's home.
        if user.run("env", sys.executable, "-c", "").returncode == 0:
            user = PlainUser(name, who.pw_uid, who.pw_gid, home, sys.executable)
        yield user
    finally:
        # userdel would leave files of the user's subordinate ids where they are, and would keep
        # everybody else from making users for as long as it removes the others.
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run(["userdel", "--remove", "--force", name], check=False, capture_output=True)


def unpack_for(user: PlainUser, rootfs: Path) -> Path:
    """Give a user a copy of an image, owned by ids that they may use."""
    target = user.home / "rootfs"
    made = user.run("mkdir", str(target))
    assert made.returncode == 0, made.stderr
    pack = ["tar", "-C", str(rootfs), "--exclude=./dev/*", "-c", "."]
    unpack = user.command(*USER_NAMESPACE, "tar", "-C", str(target), "-xp")
    with subprocess.Popen(pack, stdout=subprocess.PIPE) as packer:
        subprocess.run(unpack, stdin=packer.stdout, env=user.env, check=True)
    assert packer.returncode == 0
    return target
