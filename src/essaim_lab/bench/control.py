"""A control plane of its own for a benchmark: fresh state, the user's image cache, nothing left."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import essaim
from essaim_lab.bench.rows import CannotRunError
from essaim_lab.bench.timing import Measured, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from essaim.bootstrap import App

CHECKOUT = Path(essaim.__file__).parents[2]
LAUNCHER = CHECKOUT / "essaim"


class Essaim:
    """Runs `./essaim` as a user does, on a state directory nobody else uses."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environ = {k: v for k, v in os.environ.items() if k != "ESSAIM_DATABASE"}
        self.environ["ESSAIM_HOME"] = str(home)
        self._raised: set[str] = set()

    def __call__(self, *words: str, within: float = 600.0, adopt: bool = False) -> Measured:
        """Run one command; CannotRunError with its last words when it fails."""
        command = ["./essaim", *words]
        done = timed(command, environ=self.environ, cwd=CHECKOUT, within=within, adopt=adopt)
        return done.require()

    def up(self, where: str, name: str, *overrides: str, adopt: bool = False) -> Measured:
        """Bring a stack up; it goes down when this control plane does."""
        self._raised.add(name)
        return self("up", where, *overrides, "--yes", adopt=adopt)

    def down(self, name: str) -> Measured:
        """Take a stack down."""
        done = self("down", name, "--yes")
        self._raised.discard(name)
        return done

    def close(self) -> None:
        """Take everything down and remove the state."""
        for name in sorted(self._raised):
            try:
                self.down(name)
            except CannotRunError as error:
                if not (self.home / "sandbox" / name).exists():
                    continue  # it was refused before anything was made
                # State is kept: without it nobody could find the machines to remove them.
                sys.stderr.write(f"left in {self.home}: {error}\n")
                return
        shutil.rmtree(self.home)

    def app(self) -> App:
        """Give its parts, for what no command tells.  The caller closes it."""
        from essaim.bootstrap import App  # noqa: PLC0415 - only some benchmarks need it

        return App(self.environ)


@contextmanager
def control_plane(*images: str) -> Iterator[Essaim]:
    """Give a fresh control plane whose images are in the cache; needs a checkout."""
    if not LAUNCHER.is_file():
        raise CannotRunError(f"{LAUNCHER} is not there: run this from a checkout")
    essaim_ = Essaim(Path(tempfile.mkdtemp(prefix="essaim-bench-")))
    try:
        for image in images:
            essaim_("image", "build", image, within=1800)
        yield essaim_
    finally:
        essaim_.close()
