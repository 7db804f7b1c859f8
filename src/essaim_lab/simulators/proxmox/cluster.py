"""The simulated cluster: its state, and what happens to a request."""

from __future__ import annotations

import inspect
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from essaim_lab.simulators.proxmox.access import ROOT, Access
from essaim_lab.simulators.proxmox.clock import Clock, WallClock
from essaim_lab.simulators.proxmox.errors import (
    BROKEN,
    MISSING,
    NO_ROUTE,
    UNAUTHORISED,
    PveError,
    refused_permission,
)
from essaim_lab.simulators.proxmox.faults import Faults
from essaim_lab.simulators.proxmox.kernel import Lock, Process, Sleep, Station
from essaim_lab.simulators.proxmox.roles import major
from essaim_lab.simulators.proxmox.schema import Endpoint, routes
from essaim_lab.simulators.proxmox.settings import Settings
from essaim_lab.simulators.proxmox.state import Guest, Node, Pool, Storage, Task
from essaim_lab.simulators.proxmox.stock import template
from essaim_lab.simulators.proxmox.tally import Tally
from essaim_lab.simulators.proxmox.versions import rule

OK = 200
FORK_SECONDS = 0.05  #: until a task has a process of its own
#: What may be done without most of the cluster.
_LONELY = ("/access/ticket", "/status/stop", "/status/shutdown", "/tasks/")


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks."""

    method: str
    path: str  #: after /api2/json
    said: Mapping[str, Any] = field(default_factory=dict)
    ticket: str = field(default="", repr=False)
    csrf: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """What it is told; the message is the HTTP reason phrase as well."""

    status: int = OK
    data: Any = None
    message: str = "OK"
    errors: Mapping[str, str] = field(default_factory=dict)
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A request that is allowed and makes sense."""

    who: str
    said: Mapping[str, Any]
    kind: str = ""

    @property
    def node(self) -> str:
        """The node it is about."""
        return str(self.said["node"])

    @property
    def vmid(self) -> int:
        """The machine it is about."""
        return int(self.said["vmid"])


Handler = Callable[["Cluster", Call], Any]
HANDLERS: dict[str, Handler] = {}


def answers(*names: str) -> Callable[[Handler], Handler]:
    """Let a function answer these endpoints; GUEST stands for both kinds."""

    def register(handler: Handler) -> Handler:
        for name in names:
            for kind in ("qemu", "lxc") if "GUEST" in name else ("",):
                HANDLERS[name.replace("GUEST", kind)] = handler
        return handler

    return register


class Cluster:
    """All that is simulated.  May be used by any number of threads; its clock's lock guards it."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or WallClock()
        self.kernel = self.clock.kernel
        self.random = random.Random(settings.seed)  # noqa: S311 - repeatable on purpose
        self.nodes = {
            node.name: Node(node, Station(self.kernel, node.starts)) for node in settings.nodes
        }
        self.storages = {each.name: Storage(each, self.kernel) for each in settings.storages}
        self.guests: dict[int, Guest] = {}
        #: Every disk on a storage, and whose number it carries, also when no configuration has it.
        self.volumes: dict[str, int] = {}
        self.pools: dict[str, Pool] = {}
        self.ha: dict[int, str] = {}  #: guests the HA manager looks after, and as what
        self.access = Access(self.pools, major(settings.version))
        self.faults = Faults(self, settings.seed)
        self.tasks: dict[str, Task] = {}
        self._order: dict[str, deque[Task]] = {name: deque() for name in self.nodes}
        self._locks: dict[tuple[str, int], Lock] = {}
        self._born = self.kernel.now
        #: What happened lately, in order: (seconds since the beginning, who, what).
        self.history: deque[tuple[float, str, str]] = deque(maxlen=100_000)
        self.tally = Tally()
        #: What real machines there are, by number; none unless something backs them.
        self.machines: Callable[[], dict[str, dict[str, str]]] = dict
        #: Called with a machine after each change of its power or existence.
        self.watchers: list[Callable[[Guest, str], None]] = []
        #: Begins the start of a real machine, if there is one behind the guest; what it returns
        #: says None until that is over, then nothing, or why it has failed.
        self.starter: Callable[[Guest], Callable[[], str | None] | None] | None = None
        #: Runs a command in the real machine behind a guest: see `guest_agent`.
        self.agent_runner: Callable[[Guest, Sequence[str], bytes], Callable[[], Any]] | None = None
        self.agents = True  #: guest agents answer, where they are configured
        #: Called with a node's name and whether it is lost.
        self.doors: list[Callable[[str, bool], None]] = []
        for each in settings.templates:
            guest = template(each, self.new_mac)
            guest.changed = self.kernel.now - settings.stats_seconds
            self.guests[each.vmid] = guest
            self.volumes |= dict.fromkeys((d["file"] for d in guest.disks().values()), each.vmid)

    # Requests

    def submit(self, request: Request, done: Callable[[Answer], None]) -> None:
        """Answer by calling `done`, at once or when simulated time has come."""
        with self.clock.lock:
            self.clock.settle()
            self.tally.request(request.method, request.path)
            early = self.faults.early(request)
            if early:
                return done(self._told(early))
            try:
                result = self._perform(request)
            except PveError as error:
                result = self._late(error) if error.code == UNAUTHORISED else error
            except Exception as defect:  # noqa: BLE001 - everybody else is to be answered
                self.kernel.defects.append(defect)
                result = PveError(f"the simulator has a defect: {defect!r}")
            if not inspect.isgenerator(result):
                return done(self._told(self.faults.late(_answered(result))))

            def finish(data: Any, error: PveError | None) -> None:
                done(self._told(self.faults.late(_answered(error or data))))

            self.kernel.spawn(cast("Process", result), finish)
            self.clock.settle()
        return None

    def _told(self, answer: Answer) -> Answer:
        if answer.status != OK:
            self.tally.refusal(answer.status, answer.message)
        return answer

    def _late(self, error: PveError) -> Process | PveError:
        if not self.settings.denied_seconds:
            return error

        def wait() -> Process:
            yield Sleep(self.settings.denied_seconds)
            raise error

        return wait()

    def _perform(self, request: Request) -> Any:
        endpoint, said = routes().find(request.method, request.path)
        who = self._authenticate(request)
        handler = HANDLERS.get(endpoint.name) if endpoint else None
        if endpoint is None or handler is None:
            name = f"{request.method} {request.path}"
            raise PveError(f"Method '{name}' not implemented", MISSING)
        said = {**said, **request.said}
        if request.token and not endpoint.token:
            raise refused_permission(
                f"URI '{request.path}' not available with API token, need proper ticket."
            )
        self.access.check(rule(endpoint.name, endpoint.check, self.settings.version), who, said)
        self._reach(said.get("node"))
        kind = "qemu" if "/qemu" in endpoint.name else "lxc" if "/lxc" in endpoint.name else ""
        call = Call(who, endpoint.verify(said), kind)
        self._check_quorum(endpoint)
        slow = self.settings.slow_listing if endpoint.name in SLOW else 0.0
        return self._slowly(handler, call, slow) if slow else handler(self, call)

    def _slowly(self, handler: Handler, call: Call, seconds: float) -> Process:
        yield Sleep(seconds)
        return handler(self, call)

    def _authenticate(self, request: Request) -> str:
        now = self.kernel.now
        if request.path in ("/access/ticket", "/access/domains"):
            return ""
        if request.token and not request.ticket:
            who = self.access.bearer(request.token, now)
        elif request.ticket:
            who = self.access.holder(request.ticket)
        else:
            raise PveError("No ticket", UNAUTHORISED)
        if not who:
            raise PveError("Authentication failed!", UNAUTHORISED)
        if (
            request.ticket
            and request.method != "GET"
            and not self.access.matches(who, request.csrf)
        ):
            raise PveError("Permission denied - invalid csrf token", UNAUTHORISED)
        return who

    def _reach(self, name: str | None) -> None:
        if name is None or name == "localhost":
            return
        node = self.nodes.get(name)
        if node is None:
            raise PveError(f"no such cluster node '{name}'")
        if not node.online:
            raise PveError("No route to host", NO_ROUTE)

    def _check_quorum(self, endpoint: Endpoint) -> None:
        alone = endpoint.name.startswith("GET") or any(part in endpoint.name for part in _LONELY)
        if not self.faults.quorate and not alone:
            raise PveError("cluster not ready - no quorum?", BROKEN)

    # What handlers use

    def note(self, who: str, what: str) -> None:
        """Write down what happened."""
        self.history.append((round(self.kernel.now - self._born, 6), who, what))

    def guest(self, call: Call) -> Guest:
        """The machine a call is about; it must be on the node it was asked for on."""
        return self.there(call.node, call.kind, call.vmid)

    def there(self, node: str, kind: str, vmid: int) -> Guest:
        """The machine of that number on that node."""
        found = self.guests.get(vmid)
        if found is None or found.node != node or found.kind != kind:
            folder = "qemu-server" if kind == "qemu" else "lxc"
            raise PveError(f"Configuration file 'nodes/{node}/{folder}/{vmid}.conf' does not exist")
        return found

    def check_unused(self, vmid: int) -> None:
        """Refuse a number that is taken."""
        found = self.guests.get(vmid)
        if found:
            raise PveError(f"{found.word} {vmid} already exists on node '{found.node}'")

    def touch(self, guest: Guest) -> None:
        """Call before a change that listings show later."""
        every = self.settings.stats_seconds
        if every and guest.changed <= self.gathered():
            guest.shown = guest.entry(self.kernel.now) if guest.vmid in self.guests else None
        guest.changed = self.kernel.now

    def gathered(self) -> float:
        """When powers and names were gathered last."""
        every = self.settings.stats_seconds
        return self.kernel.now // every * every if every else self.kernel.now

    def add(self, guest: Guest) -> None:
        """Let the machine exist."""
        guest.changed = self.kernel.now
        self.guests[guest.vmid] = guest
        self.told(guest, "add")

    def remove(self, guest: Guest) -> None:
        """Let it exist no more, with all rights to it."""
        self.guests.pop(guest.vmid, None)
        self.ha.pop(guest.vmid, None)
        self.told(guest, "remove")
        for pool in self.pools.values():
            if guest.vmid in pool.vms:
                pool.vms.discard(guest.vmid)
                pool.refresh()
        for key in [key for key in self.access.rules if key[0] == f"/vms/{guest.vmid}"]:
            del self.access.rules[key]
        self.access.changed()

    def into_pool(self, name: str, vmid: int) -> None:
        """Make the machine a member."""
        self.pools[name].vms.add(vmid)
        self.pools[name].refresh()
        self.access.changed()

    def told(self, guest: Guest, what: str) -> None:
        """Tell whoever watches that it is there, that its power changed, or that it is gone."""
        for watcher in self.watchers:
            watcher(guest, what)

    def storage(self, name: str, node: str) -> Storage:
        """The storage of that name."""
        if name not in self.storages:
            raise PveError(f"storage '{name}' does not exist")
        self._reach(node)
        if not self.storages[name].is_on(node):
            raise PveError(f"storage '{name}' is not available on node '{node}'")
        return self.storages[name]

    def file_lock(self, node: str, kind: str, vmid: int) -> tuple[Lock, str]:
        """The file a node locks while it works on that number, and what a time-out says."""
        lock = self._locks.setdefault((node, vmid), Lock())
        path = (
            f"/var/lock/qemu-server/lock-{vmid}.conf"
            if kind == "qemu"
            else f"/run/lock/lxc/pve-config-{vmid}.lock"
        )
        return lock, f"can't lock file '{path}' - got timeout"

    def new_mac(self) -> str:
        """An address for a network card, nobody else's."""
        tail = ":".join(f"{self.random.randrange(256):02X}" for _ in range(3))
        return f"BC:24:11:{tail}"

    # Tasks

    def begin(self, call: Call, kind: str, work: Callable[[Task], Process], node: str = "") -> str:
        """Start a task; gives its UPID."""
        place = self.nodes[node or call.node]
        place.pid += 1 + self.random.randrange(40)
        now = int(self.kernel.now)
        pstart = int((self.kernel.now - self._born + 864000) * 100)
        name = str(call.said.get("vmid", ""))
        upid = f"UPID:{place.name}:{place.pid:08X}:{pstart:08X}:{now:08X}:{kind}:{name}:{call.who}:"
        task = Task(upid, place.name, place.pid, pstart, now, kind, name, call.who)
        self.tasks[upid] = task
        queue = self._order[place.name]
        queue.appendleft(task)
        while len(queue) > self.settings.archive and not queue[-1].running:
            del self.tasks[queue.pop().upid]

        def finish(_result: Any, error: PveError | None) -> None:
            self.end_task(task, error.message if error else "OK")

        self.note(call.who, f"begins {kind} {name}")
        self.tally.begun(self.kernel.now)
        # Meanwhile others may pass the same checks: this is how two get the same number.
        self.kernel.after(FORK_SECONDS, lambda: self._spawn(task, work, finish))
        return upid

    def _spawn(
        self,
        task: Task,
        work: Callable[[Task], Process],
        finish: Callable[[Any, PveError | None], None],
    ) -> None:
        if task.running:
            task.process = self.kernel.spawn(work(task), finish)
            self.faults.task_began(task)

    def end_task(self, task: Task, status: str) -> None:
        """Write down how it ended.  Nothing if it has ended."""
        if not task.running:
            return
        task.exitstatus = status
        task.endtime = int(self.kernel.now)
        if status != "unexpected status":
            task.say("TASK OK" if status == "OK" else f"TASK ERROR: {status}")
        self.note(task.user, f"ends {task.type} {task.id}: {status}")
        self.tally.ended(task.type, status, self.kernel.now)

    def tasks_of(self, node: str) -> deque[Task]:
        """The tasks of a node, newest first."""
        return self._order[node]

    # Set-up by the lab itself

    def grant(self, path: str, who: str, role: str, *, propagate: bool = True) -> None:
        """Give somebody (a user, or a token as user@realm!name) a role at a place."""
        kind = "token" if "!" in who else "user"
        self.access.rules.setdefault((path, kind, who), {})[role] = propagate
        self.access.changed()


def _answered(result: Any) -> Answer:
    if isinstance(result, Answer):
        return result
    if isinstance(result, PveError):
        return Answer(result.code, None, result.message, result.errors)
    return Answer(data=result)


SLOW = {"GET /cluster/resources", "GET /pools", "GET /pools/{poolid}", "GET /nodes/{node}/storage",
        "GET /nodes/{node}/storage/{storage}/content"}  # fmt: skip
__all__ = ["ROOT", "Answer", "Call", "Cluster", "Request", "answers"]
