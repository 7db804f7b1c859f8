"""What others do to make many machines on a cluster: plain clients, as short as they can be.

They work in virtual time: it moves only when all of them wait, so that neither this computer's
speed nor its load changes what they need.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from essaim_lab.bench.school_cluster import POOL, STORAGE, TEMPLATE, Cluster, Like, Outcome, cluster
from essaim_lab.simulators.proxmox.clock import EPOCH, VirtualClock

if TYPE_CHECKING:
    from proxmoxer import ProxmoxAPI  # type: ignore[import-untyped]

    from essaim_lab.simulators.proxmox.settings import TemplateSettings

#: Simulated seconds from a request to its answer, besides what the cluster needs for it.
LATENCY = 0.05
#: Seconds between two looks at a task, as proxmoxer's own helper has it.
LOOK = 1.0
#: Seconds until what was refused is tried again, and how often before it has failed.
AGAIN, TRIES = 5.0, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How somebody makes machines: so many at once; `alone`: an id is chosen and used by one."""

    name: str
    parallel: int
    alone: bool = False


FIXED_5 = Policy(name="5 at once, global lock", parallel=5, alone=True)
FIXED_10 = Policy(name="10 at once, nextid", parallel=10)
SEQUENTIAL = Policy(name="one by one", parallel=1)
POLICIES = (FIXED_5, FIXED_10, SEQUENTIAL)


def carry_out(policy: Policy, like: Like, machines: int) -> Outcome:
    """Make machines on a cluster of their own; gives what that took."""
    clock = VirtualClock(clients=policy.parallel)
    with cluster(like, clock) as its:
        crew = _Crew(policy, its, clock, machines)
        threads = [
            threading.Thread(target=crew.work, args=(number,), daemon=True)
            for number in range(policy.parallel)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return its.outcome(machines, EPOCH)


class _RefusedError(Exception):
    """The cluster did not do it; it may the next time."""


class _Crew:
    """Workers who take one machine after the other from the same list."""

    def __init__(self, policy: Policy, its: Cluster, clock: VirtualClock, machines: int) -> None:
        self._clock = clock
        self._sim = its.sim
        self._left = deque(range(machines))
        self._templates = [t for t in its.sim.settings.templates if t.name == TEMPLATE]
        self._lock = _Lock(clock) if policy.alone else nullcontext()

    def work(self, number: int) -> None:
        """Make machines until none is left to make."""
        with self._clock.client(number):
            api = self._api()
            while self._left:
                machine = self._left.popleft()
                for _ in range(TRIES):
                    try:
                        self._make(api, machine)
                        break
                    except _RefusedError:
                        self._clock.sleep(AGAIN)

    def _make(self, api: ProxmoxAPI, machine: int) -> None:
        source = self._templates[machine % len(self._templates)]
        with self._lock:
            vmid = int(self._ask(api.cluster.nextid, "get"))
            upid = self._clone(api, source, vmid, machine)
        self._finish(api, upid)
        guest = api.nodes(source.node).lxc(vmid)
        self._ask(guest.config, "put", cores=2, memory=2048)
        self._finish(api, self._ask(guest.status.start, "post"))

    def _clone(self, api: ProxmoxAPI, source: TemplateSettings, vmid: int, machine: int) -> str:
        template = api.nodes(source.node).lxc(source.vmid)
        given = {"newid": vmid, "full": 1, "storage": STORAGE, "pool": POOL}
        return str(self._ask(template.clone, "post", hostname=f"s{machine:03}", **given))

    def _finish(self, api: ProxmoxAPI, upid: str) -> None:
        task = api.nodes(upid.split(":")[1]).tasks(upid).status
        while (state := self._ask(task, "get"))["status"] != "stopped":
            self._clock.sleep(LOOK)
        if state["exitstatus"] != "OK":
            raise _RefusedError(state["exitstatus"])

    def _ask(self, what: Any, method: str, **given: Any) -> Any:
        from proxmoxer import ResourceException  # noqa: PLC0415 - only this benchmark needs it

        self._clock.sleep(LATENCY)
        try:
            return getattr(what, method)(**given)
        except ResourceException as error:
            raise _RefusedError(str(error)) from error

    def _api(self) -> ProxmoxAPI:
        from proxmoxer import ProxmoxAPI  # noqa: PLC0415 - likewise

        user, _, name = self._sim.token.partition("!")
        return ProxmoxAPI(
            "127.0.0.1", port=self._sim.port, user=user, token_name=name,
            token_value=self._sim.secret, verify_ssl=str(self._sim.ca), timeout=60,
        )  # fmt: skip


class _Lock:
    """A lock that is waited for in virtual time, as one in Redis is: by asking again."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._taken = False

    def __enter__(self) -> None:
        while self._taken:  # one client runs at a time: nobody comes between
            self._clock.sleep(0.1)
        self._taken = True

    def __exit__(self, *_: object) -> None:
        self._taken = False
