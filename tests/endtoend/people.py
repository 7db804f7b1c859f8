"""People at a terminal: root, and somebody without any privilege."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nursery
from essaim_lab import computer
from terminal import Terminal, terminal

ROOT = Path(__file__).parents[2]
#: Essaim in the environment the tests run in.
OURS = (sys.executable, "-P", "-c", "from essaim.cli import main; main()")


@dataclass(frozen=True)
class Person:
    """Somebody who types `essaim …` in a checkout, with a home of their own."""

    home: Path
    checkout: Path
    launcher: tuple[str, ...]
    become: tuple[str, ...] = ()
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        path = os.environ["PATH"] if not self.become else "/usr/local/bin:/usr/bin:/bin:/usr/sbin"
        return {"HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8", **self.extra}

    @property
    def state(self) -> Path:
        return self.home / ".local" / "state" / "essaim"

    def command(self, *words: str) -> list[str]:
        return [*self.become, *self.launcher, *words]

    def types(self, *words: str, code: int | None = 0, within: float = 280) -> str:
        """Run a command to its end; stdout and stderr as a terminal would mix them."""
        if self.launcher == OURS and not self.become:
            done = nursery.run(words, env=self.env, cwd=self.checkout, timeout=within, mixed=True)
        else:
            done = subprocess.run(
                self.command(*words),
                cwd=self.checkout,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=within,
                check=False,
            )
        assert code is None or done.returncode == code, f"exit {done.returncode}\n{done.stdout}"
        return done.stdout

    def begins(self, *words: str) -> subprocess.Popen[str]:
        """Start a command and let it run."""
        return subprocess.Popen(
            self.command(*words),
            cwd=self.checkout,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def at_terminal(self, *words: str, **env: str) -> contextlib.AbstractContextManager[Terminal]:
        """Start a command in a terminal of 80 columns and 24 lines."""
        return terminal(self.command(*words), env={**self.env, **env}, cwd=self.checkout)


def root(home: Path, cache: Path) -> Person:
    """Whoever runs the tests, in this checkout, with the environment the tests run in."""
    return Person(home, ROOT, OURS, extra={"ESSAIM_CACHE": str(cache)})


@contextlib.contextmanager
def plain() -> Iterator[Person]:
    """A new user with a fresh clone, who may do nothing special on this computer."""
    # What they would have to ask their administrator for.
    computer.need({"mmdebstrap": "mmdebstrap", "newuidmap": "uidmap"})
    name = f"essaim-test-{os.getpid()}"
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", name], check=True)
    try:
        who = pwd.getpwnam(name)
        home = Path(who.pw_dir)
        checkout = home / "essaim"
        ignore = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache", ".hypothesis")
        shutil.copytree(ROOT, checkout, ignore=ignore, symlinks=True)
        subprocess.run(["chown", "-R", f"{name}:", str(checkout)], check=True)
        become = (
            "setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--init-groups",
            "--inh-caps=-all",
        )  # fmt: skip
        pip = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
        yield Person(home, checkout, (str(checkout / "essaim"),), become, extra=pip)
    finally:
        subprocess.run(["userdel", "--remove", "--force", name], check=False, capture_output=True)
