"""How long the command line takes to say anything at all."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from essaim_lab.bench.control import CHECKOUT, LAUNCHER
from essaim_lab.bench.rows import CannotRunError, Peer, Row
from essaim_lab.bench.timing import best, timed

_PROGRAM = "from essaim.cli import main; main()"


def measure(*, quick: bool) -> list[Row]:
    """Time `--help`, alone and through the launcher, beside other tools of the trade."""
    times = 3 if quick else 5
    if not LAUNCHER.is_file():
        raise CannotRunError(f"{LAUNCHER} is not there: run this from a checkout")
    direct = [sys.executable, "-P", "-c", _PROGRAM, "--help"]
    launched = ["./essaim", "--help"]
    alone, through = best(times, lambda: _wall(direct), lambda: _wall(launched))
    ansible = str(Path(sys.executable).with_name("ansible"))
    return [
        Row(
            what="essaim --help", value=alone, unit="s", most=0.3, command=" ".join(direct),
            peer=_peer("terraform -help", ["terraform", "-help"], times),
        ),
        Row(
            what="the launcher's share of it", value=(through - alone) * 1000, unit="ms", most=50,
            command=" ".join(launched), note=f"./essaim --help took {through:.3f} s",
        ),
        Row(
            what="./essaim --help", value=through, unit="s", command=" ".join(launched),
            peer=_peer("ansible --version", [ansible, "--version"], times),
        ),
    ]  # fmt: skip


def _wall(command: list[str]) -> float:
    return timed(command, cwd=CHECKOUT, within=60).require().wall


def _peer(name: str, command: list[str], times: int) -> Peer:
    """For scale only: these programs do other things when they start."""
    if shutil.which(command[0]) is None:
        return Peer(name=name, note="not here")
    (value,) = best(times, lambda: timed(command, within=60).wall)
    return Peer(name=name, value=value, command=" ".join(command))
