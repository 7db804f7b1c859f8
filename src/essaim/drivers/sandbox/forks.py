"""Children of the keeper in PID namespaces other than its own.

A process cannot change its own PID namespace, only that of the children it will have: the keeper
switches, forks, and switches back.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from essaim.drivers.sandbox import boot, linux

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

GRACE_SECONDS = 3.0


def _fork_inside(enter: Callable[[], None]) -> int:
    home = os.open("/proc/self/ns/pid", os.O_RDONLY)
    pid = -1
    try:
        enter()
        pid = os.fork()
    finally:
        if pid:
            linux.setns(home, linux.CLONE_NEWPID)
        os.close(home)
    return pid


def first_process(order: boot.Order, report: int, line: socket.socket | None = None) -> int:
    """Start a machine; what goes wrong is written to `report` as `ERRNO TEXT`.

    Nothing is written, and `report` is closed, once the machine's sshd runs.  With a `line`, it is
    in a user namespace of its own and waits there for what the keeper hands over.
    """
    if line:
        pid = linux.clone(linux.CLONE_NEWUSER | linux.CLONE_NEWPID)
    else:
        pid = _fork_inside(lambda: linux.unshare(linux.CLONE_NEWPID))
    if pid:
        return pid
    try:
        boot.become_machine(order, line)
    except BaseException as error:  # noqa: BLE001 - nothing may escape into a second keeper
        code = getattr(error, "errno", None) or 0
        text = getattr(error, "strerror", None) or str(error)
        os.write(report, f"{code} {text}".encode())
    finally:
        os._exit(1)


def ask_to_end(pid: int) -> int:
    """Send SIGTERM to all processes of a machine but its first; the child that waits for them.

    0 when the machine is ending by itself.  The child ends within GRACE_SECONDS.
    """
    try:
        space = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY)
    except FileNotFoundError:
        return 0
    try:
        child = _fork_inside(lambda: linux.setns(space, linux.CLONE_NEWPID))
    except OSError:
        return 0
    finally:
        os.close(space)
    if child:
        return child
    try:
        os.kill(-1, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            os.kill(-1, 0)  # fails once there is nobody left
            time.sleep(0.01)
    finally:
        os._exit(0)
