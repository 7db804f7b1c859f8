"""What goes wrong while machines are made: commands are killed, a node goes, ids are taken."""

from __future__ import annotations

import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from endtoend.school_rig import PATIENCE, Plane, School

#: Seconds between looks, between strangers, and for which the node is gone.
_LOOK, _STRANGERS, _AWAY = 0.01, 0.3, 3.0


@dataclass
class Told:
    """What became of a command that was typed until it ended."""

    kills: int = 0
    said: list[str] = field(default_factory=list)


def typed_until_done(plane: Plane, its: School, luck: random.Random, kills: int, span: int) -> Told:
    """Apply a roster; kill the command so often, each time after some more requests, and go on."""
    told = Told()
    while True:
        doomed = told.kills < kills
        until = its.asked[plane.token] + luck.randrange(1, span)
        pause = luck.uniform(0, 0.1)
        process = plane.person.begins("students", "apply", f"{plane.name}.csv", "--yes")
        said: list[str] = []
        reader = threading.Thread(target=lambda p=process, s=said: s.append(p.stdout.read()))
        reader.start()
        try:
            if doomed and _reached(lambda: its.asked[plane.token] >= until, process):  # noqa: B023 - asked at once
                time.sleep(pause)
                process.kill()
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()
            reader.join()
            process.stdout.close()
        told.said.append(f"exit {process.returncode}\n{said[0]}")
        if process.returncode == -signal.SIGKILL:
            told.kills += 1
            continue
        assert process.returncode == 0, "\n".join(told.said)
        return told


def _reached(moment: Callable[[], bool], process: subprocess.Popen) -> bool:
    """Wait for a moment; False when the command has ended before."""
    while not moment():
        if process.poll() is not None:
            return False
        time.sleep(0.01)
    return True


class Weather:
    """Things that happen to a cluster meanwhile: strangers come, a node goes and comes back."""

    def __init__(self, its: School, luck: random.Random, ids: range, after: int) -> None:
        self._its, self._luck, self._ids, self._after = its, luck, list(ids), after
        self._node = ""  # the one that goes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._blow)
        self.lost = 0.0  #: seconds that the node was away
        self.strangers = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _blow(self) -> None:
        due = since = 0.0
        while not self._over.wait(_LOOK):
            if time.monotonic() > due and self.strangers < len(self._ids) // 8:
                due = time.monotonic() + _STRANGERS
                self._its.cluster.fault("foreign", ids=str(self._luck.choice(self._ids)))
                self.strangers += 1
            if not since and self._strikes():
                since = time.monotonic()
            if since and not self.lost and time.monotonic() - since > _AWAY:
                self._back(since)
        if since and not self.lost:
            self._back(since)

    def _strikes(self) -> bool:
        """Lose a node once there is something to lose, while a machine is being cloned there."""
        sim = self._its.cluster
        if sum(guest.running for guest in self._its.guests().values()) < self._after:
            return False
        with sim.clock.lock:
            sim.clock.settle()
            busy = [node for node in sorted(sim.cluster.nodes) if self._clones(node)]
            if busy:
                self._node = self._luck.choice(busy)
                sim.cluster.faults.set("node", name=self._node)
        if busy:
            sim.fault("node", name=self._node)  # waits until it does not answer any more
        return bool(busy)

    def _clones(self, node: str) -> bool:
        tasks = self._its.cluster.cluster.tasks_of(node)
        return any(task.running and task.type == "vzclone" for task in tasks)

    def _back(self, since: float) -> None:
        self._its.cluster.fault("node", name=self._node, lost=False)
        self.lost = time.monotonic() - since


def spent(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the wall, and of the processors for commands that ended meanwhile."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    action()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu


def tell(text: str) -> None:
    """Say something that pytest shows with a failure, and with -s."""
    sys.stdout.write(f"{text}\n")
