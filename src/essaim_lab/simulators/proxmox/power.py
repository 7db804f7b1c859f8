"""Starting and stopping machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from essaim_lab.simulators.proxmox.cluster import ROOT, Call, Cluster, answers
from essaim_lab.simulators.proxmox.errors import PveError
from essaim_lab.simulators.proxmox.high_availability import request
from essaim_lab.simulators.proxmox.kernel import Process, Sleep
from essaim_lab.simulators.proxmox.network import bridges
from essaim_lab.simulators.proxmox.settings import NodeSettings
from essaim_lab.simulators.proxmox.state import Guest, Task

LOCK_TIMEOUT = 10.0
POLL_SECONDS = 0.5
_NAMES = {"qemu": "qm", "lxc": "vz"}


def _locked(
    cluster: Cluster, call: Call, work: Callable[[Guest, Task], Process]
) -> Callable[[Task], Process]:
    """Do it with the machine's file locked, if nobody marked the machine."""

    def locked(task: Task) -> Process:
        lock, text = cluster.file_lock(call.node, call.kind, call.vmid)
        if cluster.faults.lock_strikes(task.type):
            yield Sleep(LOCK_TIMEOUT)
            raise PveError(text)
        hold = lock.take(LOCK_TIMEOUT, text)
        try:
            yield hold
            yield from work(cluster.guest(call), task)
        finally:
            hold.give_back()

    return locked


def starting(cluster: Cluster, guest: Guest, task: Task) -> Process:
    """Power it on, sharing the node with all others that start."""
    _plugged(cluster, guest, task)
    node = cluster.nodes[guest.node]
    settings = node.settings
    seconds = settings.start_seconds if guest.kind == "lxc" else settings.boot_seconds
    began = cluster.kernel.now
    job = node.starts.work(seconds)
    if settings.start_timeout:
        resume = task.process

        def give_up() -> None:
            if resume and not resume.over and not guest.running:
                resume.interrupt("start failed: got timeout")

        cluster.kernel.at(began + settings.start_timeout, give_up)
    try:
        yield job
    finally:
        job.withdraw()
    yield from _really(cluster, guest, task)
    cluster.touch(guest)
    guest.running = True
    guest.started = cluster.kernel.now
    cluster.told(guest, "start")


def _really(cluster: Cluster, guest: Guest, task: Task) -> Process:
    """Wait for the real machine behind it, if there is one whose start may fail."""
    report = cluster.starter(guest) if cluster.starter else None
    if report is None:
        return
    while (said := report()) is None:
        yield Sleep(POLL_SECONDS)
    if said:
        task.say(said)
        raise PveError(f"startup for container '{guest.vmid}' failed")


def _plugged(cluster: Cluster, guest: Guest, task: Task) -> None:
    """Refuse to power on what is plugged into a bridge that is not there."""
    for bridge in bridges(guest):
        if bridge not in cluster.settings.bridges:
            missing = f"bridge '{bridge}' does not exist"
            if guest.kind == "qemu":
                raise PveError(missing)
            task.say(missing)
            raise PveError(f"startup for container '{guest.vmid}' failed")


def _begun(cluster: Cluster, call: Call, name: str, work: Callable[[Task], Process]) -> str:
    """Begin a task, or let the HA manager do it as root if it looks after the guest."""
    kind = f"{_NAMES[call.kind]}{name}"
    if call.vmid not in cluster.ha:
        return cluster.begin(call, kind, work)
    state = "started" if name == "start" else "stopped"
    by_root = replace(call, who=ROOT)
    return request(cluster, call, state, lambda: cluster.begin(by_root, kind, work))


@answers("POST /nodes/{node}/GUEST/{vmid}/status/start")
def start(cluster: Cluster, call: Call) -> str:
    """Power it on."""
    guest = cluster.guest(call)
    if call.kind == "lxc" and guest.running:
        raise PveError(f"CT {call.vmid} already running")

    def work(found: Guest, task: Task) -> Process:
        if found.template:
            word = "CT" if found.kind == "lxc" else "vm"
            raise PveError(f"you can't start a {word} if it's a template")
        found.check_lock()
        if found.running:
            raise PveError(f"{found.word} {found.vmid} already running")
        yield from starting(cluster, found, task)

    return _begun(cluster, call, "start", _locked(cluster, call, work))


@answers("POST /nodes/{node}/GUEST/{vmid}/status/stop")
def stop(cluster: Cluster, call: Call) -> str:
    """Power it off at once."""
    return _stopping(cluster, call, "stop", lambda guest: _node(cluster, guest).stop_seconds)


@answers("POST /nodes/{node}/GUEST/{vmid}/status/shutdown")
def shutdown(cluster: Cluster, call: Call) -> str:
    """Ask it to power itself off."""
    return _stopping(
        cluster, call, "shutdown", lambda guest: _node(cluster, guest).shutdown_seconds
    )


def _node(cluster: Cluster, guest: Guest) -> NodeSettings:
    return cluster.nodes[guest.node].settings


def _stopping(cluster: Cluster, call: Call, name: str, seconds: Callable[[Guest], float]) -> str:
    guest = cluster.guest(call)
    if call.kind == "lxc" and not guest.running:
        raise PveError(f"CT {call.vmid} not running")

    def work(found: Guest, _task: Task) -> Process:
        found.check_lock()
        if not found.running:
            if name == "shutdown":
                raise PveError(f"{found.word} {found.vmid} not running")
            return
        yield Sleep(seconds(found))
        cluster.touch(found)
        found.running = False
        cluster.told(found, "stop")

    return _begun(cluster, call, name, _locked(cluster, call, work))


@answers("POST /nodes/{node}/GUEST/{vmid}/status/reboot")
def reboot(cluster: Cluster, call: Call) -> str:
    """Power it off and on again."""
    if not cluster.guest(call).running:
        raise PveError(f"VM {call.vmid} not running")

    def work(found: Guest, task: Task) -> Process:
        yield Sleep(_node(cluster, found).shutdown_seconds)
        cluster.touch(found)
        found.running = False
        cluster.told(found, "stop")
        yield from starting(cluster, found, task)

    return cluster.begin(call, f"{_NAMES[call.kind]}reboot", _locked(cluster, call, work))
