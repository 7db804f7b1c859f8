"""The QEMU guest agent: commands run and files read and written inside a virtual machine.

Where a real machine is behind the simulated one, its commands really run there.  Elsewhere a
machine has the files that were written through the agent and a host key, and one program: `true`.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from essaim_lab.simulators.proxmox.cluster import Call, Cluster, answers
from essaim_lab.simulators.proxmox.errors import PveError
from essaim_lab.simulators.proxmox.kernel import Process, Sleep
from essaim_lab.simulators.proxmox.network import addresses, cards
from essaim_lab.simulators.proxmox.schema import split
from essaim_lab.simulators.proxmox.state import Guest

AGENT_SECONDS = 5.0  #: after a start, until the agent in a virtual machine answers
PING_SECONDS = 3.0  #: how long a node waits for the agent's answer to a ping
MAX_READ = 16 << 20  #: bytes of a file that are read at most
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
_POLL_SECONDS = 0.1
_PIDS = itertools.count(1001)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: bytes = b""
    err: bytes = b""


#: The machine does not answer.
GONE = Ended(-1)
_SILENT = "QEMU guest agent is not running"


def _available(cluster: Cluster, call: Call) -> Process:
    """Refuse as Proxmox VE does when the agent cannot be asked; gives the guest."""
    guest = cluster.guest(call)
    if "agent" not in guest.conf:  # whatever it says: `agent: 0` counts as configured
        raise PveError("No QEMU guest agent configured")
    if not guest.running:
        raise PveError(f"VM {guest.vmid} is not running")
    enabled = split(str(guest.conf["agent"]), "enabled").get("enabled") == "1"
    ready = guest.started + AGENT_SECONDS
    if not enabled or not cluster.agents or cluster.kernel.now < ready:
        wait = ready - cluster.kernel.now if enabled and cluster.agents else PING_SECONDS
        yield Sleep(min(PING_SECONDS, wait))
        if not enabled or not cluster.agents or cluster.kernel.now < ready:
            raise PveError(_SILENT)
    return guest


@answers("POST /nodes/{node}/qemu/{vmid}/agent/ping")
def ping(cluster: Cluster, call: Call) -> Process:
    """Whether the agent answers."""
    yield from _available(cluster, call)
    return {"result": {}}


@answers("GET /nodes/{node}/qemu/{vmid}/agent/network-get-interfaces")
def interfaces(cluster: Cluster, call: Call) -> Process:
    """What the agent in a virtual machine says of its cards."""
    guest = yield from _available(cluster, call)
    return {
        "result": [
            {
                "name": card["name"],
                "hardware-address": card["mac"],
                "ip-addresses": addresses(card["ip"]),
            }
            for card in cards(guest)
        ]
    }


@answers("POST /nodes/{node}/qemu/{vmid}/agent/exec")
def execute(cluster: Cluster, call: Call) -> Process:
    """Begin a command; gives its process id."""
    guest = yield from _available(cluster, call)
    said = call.said["command"]
    words = [said] if isinstance(said, str) else [str(word) for word in said]
    pid = next(_PIDS)
    report = _run(cluster, guest, words, str(call.said.get("input-data", "")).encode())
    guest.processes[pid] = report
    return {"pid": pid}


@answers("GET /nodes/{node}/qemu/{vmid}/agent/exec-status")
def exec_status(cluster: Cluster, call: Call) -> Process:
    """How a command ended; asked once after its end, it is forgotten."""
    guest = yield from _available(cluster, call)
    pid = int(call.said["pid"])
    report = guest.processes.get(pid)
    if report is None:
        raise PveError(f"Agent error: PID {pid} does not exist")
    ended = report()
    if ended is None:
        return {"exited": 0}
    del guest.processes[pid]
    if ended == GONE:
        raise PveError(_SILENT)
    found: dict[str, Any] = {"exited": 1, "exitcode": ended.code}
    for key, data in (("out-data", ended.out), ("err-data", ended.err)):
        if data:
            found[key] = data.decode(errors="replace")
    return found


@answers("GET /nodes/{node}/qemu/{vmid}/agent/file-read")
def file_read(cluster: Cluster, call: Call) -> Process:
    """The content of a file."""
    guest = yield from _available(cluster, call)
    path = str(call.said["file"])
    if cluster.agent_runner is not None:
        ended = yield from _wait(cluster.agent_runner(guest, ["cat", "--", path], b""))
        content = None if ended.code else ended.out
    else:
        content = _files(guest).get(path)
    if content is None:
        raise PveError(
            f"Agent error: failed to open file '{path}' (mode: 'r'): No such file or directory"
        )
    short = content[:MAX_READ]
    more = {"truncated": 1} if len(content) > MAX_READ else {}
    return {"content": short.decode(errors="replace"), "bytes-read": len(short), **more}


@answers("POST /nodes/{node}/qemu/{vmid}/agent/file-write")
def file_write(cluster: Cluster, call: Call) -> Process:
    """Replace the content of a file."""
    guest = yield from _available(cluster, call)
    path, text = str(call.said["file"]), str(call.said["content"])
    body = text.encode() if call.said.get("encode", 1) else base64.b64decode(text)
    if cluster.agent_runner is None:
        _files(guest)[path] = body
        return None
    words = ["sh", "-c", 'cat >"$1"', "sh", path]
    ended = yield from _wait(cluster.agent_runner(guest, words, body))
    if ended.code:
        why = "No such file or directory"
        raise PveError(f"Agent error: failed to open file '{path}' (mode: 'wb'): {why}")
    return None


def _run(
    cluster: Cluster, guest: Guest, words: Sequence[str], data: bytes
) -> Callable[[], Ended | None]:
    if cluster.agent_runner is not None:
        return cluster.agent_runner(guest, words, data)
    if words[0] != "true":
        raise PveError(
            "Agent error: Guest agent command failed, error was "
            f"'Failed to execute child process “{words[0]}” (No such file or directory)'"
        )
    return lambda: Ended(0)


def _wait(report: Callable[[], Ended | None]) -> Process:
    while (ended := report()) is None:
        yield Sleep(_POLL_SECONDS)
    if ended == GONE:
        raise PveError(_SILENT)
    return ended


def _files(guest: Guest) -> dict[str, bytes]:
    """The files of a machine that is not real; its host key is made at first sight."""
    if HOST_KEY not in guest.files:
        key = ed25519.Ed25519PrivateKey.generate().public_key()
        form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        guest.files[HOST_KEY] = key.public_bytes(*form) + f" root@{guest.name}\n".encode()
    return guest.files
