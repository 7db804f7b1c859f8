"""A service whose replicas are lines in a file, scaled by this process until its input ends.

`python -m controllers.scaling URL OWNER FILE`; each line of its input stops it, as SIGSTOP does.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path

import freezing
from essaim.scaling.replicas import Replica


class Lines:
    """Replicas that are lines in a file: `add` and `remove` are seen by all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def list(self) -> list[Replica]:
        names = self.path.read_text().split()
        return [Replica(name, 0.0, float(number)) for number, name in enumerate(names)]

    def add(self, count: int) -> None:
        names = self.path.read_text().split()
        names += [f"r{len(names) + number}" for number in range(count)]
        self.path.write_text("\n".join(names))

    def remove(self, ids) -> None:
        names = [name for name in self.path.read_text().split() if name not in ids]
        self.path.write_text("\n".join(names))

    def close(self) -> None:
        """Nothing is open."""


def main(url: str, owner: str, path: str) -> None:
    from essaim.controllers.autoscale import Autoscale, CpuGauge
    from essaim.controllers.leading import Leader
    from essaim.controllers.loops import Loops
    from essaim.plan.scaling import Policy
    from essaim.store.database import open_database
    from essaim.store.scaling import Scaling

    logging.basicConfig(level=logging.INFO)
    freezing.write_one_by_one()
    with contextlib.closing(open_database(url)) as database:
        scaling = Scaling(database)
        policy = Policy(fewest=2, interval=0.2, rise=0.2, fall=1.0, cooldown=0.2, warm_up=0.1)
        leader = Leader(scaling, "api", owner)
        gauge = CpuGauge(policy)
        loops = Loops(
            [Autoscale(scaling, leader, Lines(Path(path)), gauge, service="api", policy=policy)]
        )
        leader.start()
        loops.start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for _line in sys.stdin:
            freezing.freeze()
        loops.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
