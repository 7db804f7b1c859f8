"""A control plane in a process of its own, as `essaim serve` runs it, whose machines are free.

Nothing of the fleet is there: accounts are made and machines answer at no cost, so that what is
measured is the server alone.  It ends when its standard input does.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from essaim_lab.bench.rows import CannotRunError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from essaim.bootstrap import App


@dataclass(frozen=True, slots=True)
class Served:
    """Where the server is."""

    port: int
    pid: int


@contextmanager
def serving(
    home: Path, database: str, *, plain: bool = False, interval: float = 3600.0
) -> Iterator[Served]:
    """Run the server until the end, on a database that is seeded meanwhile.

    With the long interval no node goes stale and no check is due while something is measured.
    """
    environ = {
        **os.environ,
        "ESSAIM_HOME": str(home),
        "ESSAIM_DATABASE": database,
        "ESSAIM_INTERVAL": str(interval),
    }
    command = [sys.executable, "-m", "essaim_lab.bench.server", *(["--plain"] if plain else [])]
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise CannotRunError("the server has no pipes")
        line = process.stdout.readline()
        if not line:
            raise CannotRunError(f"the server did not start: it ended {process.wait()}")
        yield Served(port=json.loads(line)["port"], pid=process.pid)
        process.stdin.close()
        process.stdout.read()


def main(words: Sequence[str] | None = None) -> int:
    """Serve until nobody holds the other end of standard input; prints where, as JSON."""
    parser = argparse.ArgumentParser(prog="python -m essaim_lab.bench.server", description=__doc__)
    parser.add_argument("--plain", action="store_true", help="compare passwords without hashing")
    asked = parser.parse_args(words)

    from essaim.api import options  # noqa: PLC0415 - all of it is heavy
    from essaim.api.limits import Rate  # noqa: PLC0415
    from essaim.bootstrap import App  # noqa: PLC0415
    from essaim.cli.plane import Plane, listening  # noqa: PLC0415
    from essaim.usecases import credentials  # noqa: PLC0415

    # All clients have one address here.
    options.RATES = dict.fromkeys(options.RATES, Rate(1_000_000, 60.0))
    if asked.plain:
        credentials.HASHER = Plain()  # type: ignore[assignment]
    app = App()
    app.own_only = False
    free(app)
    api = listening("127.0.0.1", 0)
    plane = Plane(app, api=[api], gateway=("127.0.0.1", 0))
    plane.start()
    sys.stdout.write(json.dumps({"port": api.getsockname()[1]}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    plane.stop()
    app.close()
    return 0


def free(app: App) -> None:
    """Let the machines of a control plane cost nothing."""
    vars(app)["remote"] = Nowhere()
    lending: Any = app.lending
    lending.accounts = lending.helper = Nothing()


class Plain:
    """In the place of a password hasher: keeps the password as it is."""

    def hash(self, password: str) -> str:
        """Give it back."""
        return password

    def verify(self, kept: str, password: str) -> bool:
        """Whether they are the same; the hasher's own error otherwise."""
        import argon2  # noqa: PLC0415 - only here

        if kept != password:
            raise argon2.exceptions.VerifyMismatchError
        return True

    def check_needs_rehash(self, _kept: str) -> bool:
        """Never."""
        return False


def empty_home() -> bytes:
    """Pack a home without files, as a machine does."""
    from essaim.store.homes import LABEL  # noqa: PLC0415 - heavy

    label = json.dumps({"at": 1}).encode()
    entry = tarfile.TarInfo(LABEL)
    entry.size = len(label)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(entry, io.BytesIO(label))
    return packed.getvalue()


class Nothing:
    """In the place of accounts on machines: every verb is done at once and finds nothing."""

    def __init__(self) -> None:
        self._home = empty_home()

    def save(self, *_words: Any, **_named: Any) -> bytes:
        """Give a copy of a home."""
        return self._home

    def __getattr__(self, _verb: str) -> Any:
        """Give a verb."""
        from essaim.remote.accounts import Proof  # noqa: PLC0415

        return lambda *_words, **_named: Proof(clean=True)


class Nowhere:
    """In the place of SSH: every machine answers at once."""

    def fan_out(self, targets: Sequence[Any], *_words: Any, **_named: Any) -> Iterator[Any]:
        """Give the answer of each."""
        from essaim.remote.ssh import Result  # noqa: PLC0415

        well = Result(exit_code=0, output="", stdout="", seconds=0.0)
        return ((target, well) for target in targets)

    def drop(self, _name: object) -> None:
        """There is no connection."""

    def close(self) -> None:
        """There is nothing to close."""


if __name__ == "__main__":
    sys.exit(main())
