"""Somebody who types the lines of a page into one shell, in a checkout of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from docs.blocks import ROOT, Line, matches
from testcache import CACHE

#: Stands for the launcher: the same program, in the environment the tests run in.
LAUNCHER = """#!/bin/sh
exec {python} -P -c 'import sys; from essaim.cli import main; main(sys.argv.pop(1))' "{name}" "$@"
"""
#: Reads commands and runs each as if typed: `cd`, functions and jobs last.
LOOP = r"""
trap : INT
while IFS= read -r -d '' out <&3 && IFS= read -r -d '' line <&3; do
    eval "$line" </dev/null >"$out" 2>&1
    printf '%d\n' $? >&4
done
kill $(jobs -p) 2>/dev/null
wait
"""
PATIENCE = 600.0


class Shell:
    """One shell, which lasts for a page."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.checkout = folder / "essaim"
        self._count = 0
        self._folder = folder
        self._serving: list[subprocess.Popen[bytes]] = []
        self._lay_out()
        told, self._tell = os.pipe()
        self._answer, answered = os.pipe()
        loop = f"exec 3<&{told} 4>&{answered}\n{LOOP}"
        self._bash = subprocess.Popen(
            ["bash", "--norc", "-c", loop],
            cwd=self.checkout,
            env=self.env,
            stdin=subprocess.DEVNULL,
            pass_fds=[told, answered],
        )
        os.close(told)
        os.close(answered)

    @property
    def env(self) -> dict[str, str]:
        path = f"{self._folder / 'bin'}:{os.environ['PATH']}"
        return {
            "HOME": str(self.home),
            "PATH": path,
            "LANG": "C.UTF-8",
            "ESSAIM_CACHE": str(CACHE),
        }

    def _lay_out(self) -> None:
        self.home.mkdir()
        self.checkout.mkdir()
        for name in ("examples", "workloads", "deploy"):
            shutil.copytree(ROOT / name, self.checkout / name)
        for file in (ROOT / "essaim.yaml", ROOT / "Makefile"):
            shutil.copy(file, self.checkout)
        (self._folder / "bin").mkdir()
        for file, name in ((self.checkout, "./essaim"), (self._folder / "bin", "essaim")):
            script = file / "essaim"
            script.write_text(LAUNCHER.format(python=sys.executable, name=name))
            script.chmod(0o755)

    def types(self, line: Line) -> None:
        """Run a line to its end, or until what it serves is ready; it does as the page shows."""
        self._count += 1
        out = self._folder / f"out-{self._count}"
        out.touch()
        if line.says("serves"):
            self._serve(line, out)
            return
        os.write(self._tell, f"{out}\0{line.command}\0".encode())
        code = self._ended(line, out)
        assert code == 0, f"{line}: exit {code}\n{out.read_text()}"
        if line.command.split("#")[0].rstrip().endswith("&"):
            wait_for(lambda: out.read_text().strip(), f"{line} says nothing")
        missing = self._missing(line, out)
        assert not missing, f"{line}: not printed: {missing}\n{out.read_text()}"

    def _serve(self, line: Line, out: Path) -> None:
        with out.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line.command}"],
                cwd=self.checkout,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self._serving.append(process)
        wait_for(
            lambda: (
                process.poll() is not None
                or (out.read_text().strip() and not self._missing(line, out))
            ),
            f"{line}: not as shown",
            out,
        )
        assert process.poll() is None, f"{line} ended\n{out.read_text()}"

    def _ended(self, line: Line, out: Path) -> int:
        import select

        ready, _, _ = select.select([self._answer], [], [], PATIENCE)
        assert ready, f"{line}: still running after {PATIENCE:.0f} s\n{out.read_text()}"
        said = os.read(self._answer, 16)
        assert said, f"{line}: the shell ended"
        return int(said)

    def _missing(self, line: Line, out: Path) -> list[str]:
        """Lines the page shows and the command did not print, in whatever order."""
        printed = out.read_text().replace(str(self.home), "~").splitlines()
        missing = []
        for expected in line.output:
            found = next((each for each in printed if matches(expected, each)), None)
            if found is None:
                missing.append(expected)
            else:
                printed.remove(found)
        return missing

    def close(self) -> None:
        """Take down what was made, and end what was started."""
        for name in self._standing():
            self._quietly("down", name, "--yes")
            self._quietly("students", "remove", name, "--yes")  # a roster is not taken down
        left = self._standing()
        for process in self._serving:
            process.send_signal(signal.SIGINT)
            process.wait(60)
        os.close(self._tell)
        self._bash.wait(60)
        os.close(self._answer)
        assert left == [], f"still standing: {left}"

    def _standing(self) -> list[str]:
        import json

        with contextlib.suppress(json.JSONDecodeError):
            return [each["name"] for each in json.loads(self._quietly("status", "--json"))]
        return []

    def _quietly(self, *words: str) -> str:
        done = subprocess.run(
            [self._folder / "bin/essaim", *words],
            cwd=self.checkout,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout


def wait_for(condition, what: str, out: Path | None = None, within: float = 120.0) -> None:
    until = time.monotonic() + within
    while not condition():
        assert time.monotonic() < until, f"{what}\n{out.read_text() if out else ''}"
        time.sleep(0.05)


@contextlib.contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    made = Shell(folder)
    try:
        yield made
    finally:
        made.close()
