"""What goes wrong on purpose."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from essaim_lab.simulators.proxmox.state import Guest, Task

if TYPE_CHECKING:
    from essaim_lab.simulators.proxmox.cluster import Answer, Cluster, Request

#: 5xx answers of a Proxmox VE that is overloaded, and of the proxy in it.
BURST = (
    (500, "Internal Server Error"),
    (502, "Bad Gateway"),
    (503, "Service Unavailable"),
    (596, "Connection timed out"),
)
#: Each is a method of `Faults`.
FAULTS = ("errors", "locks", "deaths", "quorum", "node", "foreign", "snatch", "full",
          "maintenance", "managed", "backup")  # fmt: skip
LONG = ("qmclone", "vzclone", "vzcreate", "qmcreate", "qmstart", "vzstart")


class Faults:
    """The faults there are now.  All chances come from the seed."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed + 1)  # noqa: S311 - repeatable on purpose
        self.quorate = True
        self._errors: dict[str, Any] = {}
        self._locks: dict[str, Any] = {}
        self._deaths: dict[str, Any] = {}
        self._snatch: dict[str, Any] = {}
        self._foreign = 0
        self.seen: dict[str, int] = {}

    def set(self, name: str, /, **how: Any) -> None:
        """Begin, change or end one; see `FAULTS` for their names."""
        if name not in FAULTS:
            raise ValueError(f"no fault is called {name}; there are {', '.join(sorted(FAULTS))}")
        with self._cluster.clock.lock:
            self._cluster.clock.settle()
            getattr(self, name)(**how)
            self._cluster.note("lab", f"fault {name} {how}")

    def heal(self) -> None:
        """End all of them; nodes come back."""
        with self._cluster.clock.lock:
            for fault in (self._errors, self._locks, self._deaths, self._snatch):
                fault.clear()
            self.quorate = True
            self._cluster.ha.clear()
            for storage in self._cluster.storages.values():
                storage.full = False
            for each in self._cluster.nodes.values():
                each.maintenance = False
            for node in self._cluster.nodes:
                self.node(node, lost=False)

    # The faults

    def errors(self, share: float = 0.05, after: float = 0.5, seconds: float = 0.0) -> None:
        """Answer a share of all requests with 5xx; of those, a share has been carried out.

        With `seconds`, only for so long: a burst.
        """
        self._errors = {"share": share, "after": after, "until": self._until(seconds)}

    def locks(
        self, share: float = 0.05, seconds: float = 0.0, kinds: str = "", count: int = 10**9
    ) -> None:
        """Let a share of clones and starts fail with a lock time-out, so many at most.

        `kinds` are types of tasks; `config` is a change of a configuration, which is no task.
        """
        chosen = kinds.split(",") if kinds else LONG
        self._locks = {"share": share, "until": self._until(seconds), "kinds": chosen}
        self._locks["count"] = count

    def deaths(self, share: float = 1.0, count: int = 1, kinds: str = "", after: float = 1.0,
               *, unlock: bool = True) -> None:  # fmt: skip
        """Kill so many tasks some seconds after they began: their exit status is unexpected.

        What they had marked as locked stays so, as in reality; with `unlock` only the machine
        they made does, and what they cloned from is free, as if somebody had typed `pct unlock`.
        """
        self._deaths = {"share": share, "count": count, "after": after, "unlock": unlock}
        self._deaths["kinds"] = kinds.split(",") if kinds else LONG

    def quorum(self, *, lost: bool = True) -> None:
        """Let the cluster be without a majority: it can be looked at, not changed."""
        self.quorate = not lost

    def node(self, name: str, *, lost: bool = True, unlock: bool = True) -> None:
        """Lose a node with all that runs there, or bring it back with its machines off.

        Tasks there die, and what they locked stays locked; with `unlock` that is put right when
        the node comes back, as an administrator would.
        """
        cluster = self._cluster
        node = cluster.nodes[name]
        if node.online and lost:
            self._lose(name)
        elif not node.online and not lost and unlock:
            for guest in cluster.guests.values():
                if guest.node == name:
                    self.unlock(guest.vmid)
        if node.online == lost:
            node.online = not lost
            for door in cluster.doors:
                door(name, lost)

    def _lose(self, name: str) -> None:
        cluster = self._cluster
        for task in list(cluster.tasks_of(name)):
            if task.running:
                self.kill(task)
        for guest in cluster.guests.values():
            if guest.node == name and guest.running:
                cluster.touch(guest)
                guest.running = False
                cluster.told(guest, "stop")

    def full(self, storage: str, *, lost: bool = True) -> None:
        """Let a storage have no room for anything more, or room again."""
        self._cluster.storages[storage].full = lost

    def maintenance(self, node: str, *, lost: bool = True) -> None:
        """Let an administrator take a node out of use, or put it to use again."""
        self._cluster.nodes[node].maintenance = lost

    def managed(self, vmid: int, *, lost: bool = True) -> None:
        """Let an administrator put a guest under the HA manager, as it is now, or take it off."""
        guest = self._cluster.guests[vmid]
        self._cluster.ha.pop(vmid, None)
        if lost:
            self._cluster.ha[vmid] = "started" if guest.running else "stopped"

    def backup(self, vmid: int, seconds: float = 3600.0) -> None:
        """Let a backup hold a guest locked for so long."""
        guest = self._cluster.guests[vmid]
        guest.conf["lock"] = "backup"
        self._cluster.kernel.after(seconds, lambda: guest.conf.pop("lock", None))

    def foreign(self, ids: str = "", count: int = 1) -> None:
        """Let a stranger take these numbers now: 50000,50001 or 50000-50010; else the next free."""
        wanted = _numbers(ids) if ids else []
        number = 100
        while len(wanted) < count:
            while number in self._cluster.guests or number in wanted:
                number += 1
            wanted.append(number)
        for vmid in wanted:
            self.take(vmid)

    def snatch(self, share: float = 0.1, count: int = 10**9, seconds: float = 0.0) -> None:
        """Let a stranger take the number of a share of the clones just before they are asked."""
        self._snatch = {"share": share, "count": count, "until": self._until(seconds)}

    # How they happen

    def _until(self, seconds: float) -> float:
        return self._cluster.kernel.now + seconds if seconds else float("inf")

    def _strikes(self, fault: Mapping[str, Any]) -> bool:
        if not fault or self._cluster.kernel.now > fault.get("until", float("inf")):
            return False
        return self._random.random() < float(fault["share"])

    def _saw(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def early(self, request: Request) -> Answer | None:
        """An answer in place of the real one, before anything was done."""
        if request.path.endswith("/clone") and self._strikes(self._snatch):
            self._snatch["count"] -= 1
            if self._snatch["count"] >= 0:
                self.take(int(request.said.get("newid", 0)))
        if self._strikes(self._errors) and self._random.random() >= self._errors["after"]:
            return self._burst()
        return None

    def late(self, answer: Answer) -> Answer:
        """The answer a client gets; perhaps not the real one, though all was done."""
        share = self._errors.get("share", 0.0) * self._errors.get("after", 0.0)
        if self._strikes({**self._errors, "share": share} if share else {}):
            return self._burst()
        return answer

    def _burst(self) -> Answer:
        from essaim_lab.simulators.proxmox.cluster import Answer  # noqa: PLC0415 - it knows us

        status, message = self._random.choice(BURST)
        self._saw(str(status))
        return Answer(status, None, message)

    def lock_strikes(self, kind: str) -> bool:
        """Whether a task of that kind shall wait for its lock in vain."""
        if not self._locks.get("count", 0) or kind not in self._locks["kinds"]:
            return False
        strikes = self._strikes(self._locks)
        if strikes:
            self._locks["count"] -= 1
            self._saw("lock")
        return strikes

    def task_began(self, task: Task) -> None:
        """Perhaps let it die soon."""
        fault = self._deaths
        if fault.get("count", 0) > 0 and task.type in fault["kinds"] and self._strikes(fault):
            fault["count"] -= 1
            unlock = fault["unlock"]
            self._cluster.kernel.after(fault["after"], lambda: self.kill(task, unlock=unlock))

    def kill(self, task: Task, *, unlock: bool = False) -> None:
        """End it as kill -9 does."""
        if not task.running:
            return
        self._saw("death")
        if task.process:
            task.process.kill()
        self._cluster.end_task(task, "unexpected status")
        if unlock and task.id and task.type in ("vzclone", "qmclone"):
            self.unlock(int(task.id))

    def unlock(self, vmid: int) -> None:
        """Do what `qm unlock` and `pct unlock` do."""
        guest = self._cluster.guests.get(vmid)
        if guest:
            guest.conf.pop("lock", None)

    def take(self, vmid: int) -> None:
        """Let a stranger's machine exist under that number.  Nothing if it is taken."""
        cluster = self._cluster
        if not vmid or vmid in cluster.guests:
            return
        self._foreign += 1
        self._saw("foreign")
        names = sorted(name for name, node in cluster.nodes.items() if node.online)
        node = names[self._foreign % len(names)] if names else next(iter(cluster.nodes))
        conf = {"name": f"foreign-{self._foreign}", "memory": 512, "cores": 1}
        cluster.add(Guest(vmid, "qemu", node, conf))


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
