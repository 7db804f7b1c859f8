"""`python -m essaim_lab.deployment up|down|demo`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from essaim.model.errors import EssaimError
from essaim_lab.deployment.cluster import Cluster

REPO = Path(__file__).resolve().parents[3]
FAILED, USAGE, SETUP = 1, 2, 3


def place() -> Path:
    """Where the deployment is kept between `up` and `down`."""
    base = os.environ.get("ESSAIM_CLUSTER_HOME")
    return Path(base).absolute() if base else Path.home() / ".local/state/essaim-cluster"


def say(text: str) -> None:
    """Tell whoever watches."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def main(words: list[str]) -> int:
    """Do what was asked; gives the exit code."""
    cluster = Cluster(place(), REPO, say)
    try:
        match words:
            case ["up"]:
                cluster.up()
                say(f"the API answers at {cluster.url} (its authority: {cluster.certificate})")
                say("make down-cluster takes all of it away")
            case ["down"]:
                cluster.down()
                say("all of it is gone")
            case ["demo"]:
                from essaim_lab.deployment.play import demo  # noqa: PLC0415 - only when played

                return demo(cluster)
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
