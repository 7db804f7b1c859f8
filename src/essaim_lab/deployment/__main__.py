"""`python -m essaim_lab.deployment up [WORKERS]|down|demo`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from essaim.model.errors import EssaimError, SetupError
from essaim_lab.deployment.cluster import Cluster
from essaim_lab.deployment.commands import STOPS

REPO = Path(__file__).resolve().parents[3]
FAILED, USAGE, SETUP = 1, 2, 3
#: Machines that there are when nobody says how many.
WORKERS = 3


def place() -> Path:
    """Where the deployment is kept between `up` and `down`."""
    base = os.environ.get("ESSAIM_CLUSTER_HOME")
    return Path(base).absolute() if base else Path.home() / ".local/state/essaim-cluster"


def say(text: str) -> None:
    """Tell whoever watches."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


@contextlib.contextmanager
def undone_if_stopped(cluster: Cluster) -> Iterator[None]:
    """Take down what was begun here when somebody stops it."""
    was_there = cluster.is_made
    try:
        yield
    except SystemExit:
        if not was_there:
            say("stopped: taking down what was begun")
            cluster.down()
            say("all of it is gone")
        raise


def stop(number: int, _frame: FrameType | None) -> None:
    """End as if done, so that whoever has begun something undoes it."""
    raise SystemExit(128 + number)


def number_of(words: list[str]) -> int:
    """How many machines are wanted; SetupError when that is no number."""
    match words:
        case []:
            return WORKERS
        case [word] if word.isdecimal():
            return int(word)
    raise SetupError(f"WORKERS={' '.join(words)}: say a number", hint="make up-cluster WORKERS=10")


def main(words: list[str]) -> int:
    """Do what was asked; gives the exit code."""
    for number in STOPS:
        signal.signal(number, stop)
    cluster = Cluster(place(), REPO, say)
    # Whoever looks at one that is up can go on while the demonstration is played.
    stage = Cluster(cluster.place.with_name(f"{cluster.place.name}-demo"), REPO, say)
    try:
        match words:
            case ["up", *count]:
                with undone_if_stopped(cluster):
                    cluster.up()
                    cluster.workers.resize(number_of(count))
                say(f"the API answers at {cluster.url} (its authority: {cluster.certificate})")
                say(f"the engine: docker --host unix://{cluster.docker.socket} ps")
                say("make up-cluster WORKERS=10 makes it ten machines, while it runs")
                say("make down-cluster takes all of it away")
            case ["down"]:
                for each in (cluster, stage):
                    each.down()
                say("all of it is gone")
            case ["demo"]:
                from essaim_lab.deployment.play import demo  # noqa: PLC0415 - only when played

                stage.down()
                with undone_if_stopped(stage):
                    return demo(stage)
            case _:
                sys.stderr.write("up, down or demo?\n")
                return USAGE
    except EssaimError as error:
        say(f"{error.what}" + (f"\n  → {error.hint}" if error.hint else ""))
        return SETUP
    except subprocess.SubprocessError as error:
        say(str(error))
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
