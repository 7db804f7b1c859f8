"""How many processors' worth of work some processes did, and all of this computer together."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from essaim_lab.bench import processes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CORES = len(os.sched_getaffinity(0))
#: Of all processors: who uses more has none left.
FULL = 0.9


@dataclass(slots=True)
class Meter:
    """Between `with` and its end: seconds of CPU of each group of processes, and of everybody.

    This process, which plays the clients, is always a group.
    """

    groups: Mapping[str, Sequence[int]]
    seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    everybody: float = 0.0

    def __enter__(self) -> Self:
        self.cpu = self._read()
        self.everybody, self.seconds = processes.busy(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        # First what is true of this moment: to look at every process takes a while.
        self.everybody = processes.busy() - self.everybody
        self.seconds = time.perf_counter() - self.seconds
        self.cpu = {name: used - self.cpu[name] for name, used in self._read().items()}

    @property
    def busy(self) -> float:
        """Processors that worked on the average, whoever they worked for."""
        return self.everybody / self.seconds

    @property
    def full(self) -> bool:
        """Whether there was nothing left to give."""
        return self.busy >= FULL * CORES

    def sentence(self) -> str:
        """Say who used how many."""
        each = ", ".join(f"{name} {used / self.seconds:.2f}" for name, used in self.cpu.items())
        return f"{self.busy:.2f} of {CORES} cores busy: {each}"

    def _read(self) -> dict[str, float]:
        found = {
            name: sum(one.cpu for one in processes.tree(pids)) for name, pids in self.groups.items()
        }
        return {**found, "this process": time.process_time()}
