"""What sandbox machines promise beyond any driver's; tried as root and as a plain user.

Run as a program (`sandbox_checks.py CHECK ROOTFS`) it tries one of them without pytest.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from drivers import world
from drivers.contract import refuses
from drivers.lab import NETWORK, Lab, lab, wait_for
from essaim.model.errors import RejectedError
from essaim.model.names import MachineName
from essaim.model.stacks import Size

#: Takes memory until it has as many MiB as it is told, touching every page.
TAKE = "python3 -c 'import sys; x = [bytearray(1 << 20) for _ in range(int(sys.argv[1]))]' {}"
#: Two processes that do nothing but compute for three seconds, and say how much they computed.
LOAD = """python3 -c '
import os, time
for _ in range(2):
    if not os.fork():
        end = time.monotonic() + 3
        while time.monotonic() < end: pass
        print(time.process_time())
        os._exit(0)
os.wait(); os.wait()
'"""


def sized(it: Lab, cores: int, memory: int, number: int = 1):
    machine = it.machine(it.stack(), number, size=Size(cores=cores, memory=memory))
    name = it.create(machine)
    it.driver.start(name)
    it.await_ssh(name)
    return name


def a_machine_sees_its_own_size(it: Lab) -> None:
    name = sized(it, 1, 192)
    assert it.run(name, "nproc") == "1\n"
    assert it.run(name, "free -m").split()[7] == "192"
    assert it.run(name, "grep -c ^processor /proc/cpuinfo") == "1\n"
    assert it.run(name, "python3 -c 'import os; print(os.cpu_count())'") == "1\n"
    assert it.run(name, "df --output=size -m /tmp /dev/shm").split()[1:] == ["96", "96"]


def it_has_no_more_processors_than_there_are(it: Lab) -> None:
    name = sized(it, 512, 0)
    there = len(os.sched_getaffinity(0))
    assert it.run(name, "nproc") == f"{there}\n"
    total = it.run(name, "grep MemTotal /proc/meminfo")
    assert total == Path("/proc/meminfo").read_text().splitlines(keepends=True)[0]


def it_computes_no_more_than_its_cores(it: Lab) -> None:
    """Two busy processes on one core share it: together they get about one core's time."""
    name = sized(it, 1, 192)
    spent = [float(word) for word in it.run(name, LOAD).split()]
    assert sum(spent) < 3 * 1.25, spent


def what_is_not_enforced_is_said(it: Lab) -> None:
    name = sized(it, 1, 192)
    seen = it.seen(name)
    assert seen is not None
    enforced = "limits" not in seen.detail
    if os.geteuid() == 0:
        return
    assert enforced or "memory is not enforced" in seen.detail["limits"]


def machines_share_folders_and_down_removes_them(it: Lab) -> None:
    stack = it.stack()
    names = [
        it.create(it.machine(stack, number, shared=("/home", "/root", "/srv/data")))
        for number in (1, 2)
    ]
    alone = it.create(it.machine(stack, 3))
    with ThreadPoolExecutor(3) as starts:
        list(starts.map(it.driver.start, (*names, alone)))
    for name in (*names, alone):
        it.await_ssh(name)
    first, second = names
    it.run(first, "install -d -o 2000 -g 2000 /home/student; echo hi >/home/student/x; echo r >~/r")
    assert it.run(second, "cat /home/student/x ~/r; stat -c %u /home/student") == "hi\nr\n2000\n"
    it.run(second, "rm /home/student/x; echo more >/srv/data/y")
    assert it.run(first, "ls /home/student; cat /srv/data/y") == "more\n"
    assert it.run(alone, "ls /home") == ""
    assert ".profile" in it.run(first, "ls -A /root"), "as the image has it"
    seen = it.seen(first)
    assert seen is not None
    assert seen.shared == ("/home", "/root", "/srv/data")
    it.driver.destroy(first)
    it.driver.stop(second)
    it.driver.start(second)
    it.await_ssh(second)
    assert it.run(second, "cat /srv/data/y") == "more\n", "kept with the stack"
    it.driver.close_network(stack)
    assert not (it.state / stack).exists()


def what_is_a_link_in_the_image_is_not_shared(it: Lab) -> None:
    name = it.create(it.machine(it.stack(), 1, shared=("/lib",)))
    error = refuses(RejectedError, lambda: it.driver.start(name))
    assert "/lib cannot be shared: it is a link in the image" in error.what


#: Fetches a page of 200 kB and says how much came, or what went wrong.
GET = """python3 -c '
import socket, sys
try:
    conn = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)
    conn.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    text = b"".join(iter(lambda: conn.recv(65536), b""))
    print(text.count(b"this is"), text.split()[-1].decode())
except OSError as error:
    print(type(error).__name__)
' {} {}"""


def fetches(it: Lab, name: MachineName, address: str, port: int = world.PORT) -> str:
    return it.run(name, GET.format(address, port)).strip()


def internet_is_opt_in_and_leads_nowhere_inside(it: Lab) -> None:
    """Needs a world around it: see `drivers.world`."""
    there = f"10000 {world.OUTSIDE}"
    stack, opened = it.stack(), replace(NETWORK, internet=True)
    (name,) = it.up(stack, 1)
    other = it.stack("other")
    it.up(other, 2)
    with world.world():
        assert fetches(it, name, world.OUTSIDE) == "OSError", "closed unless asked for"
        assert fetches(it, name, world.NAME) == "gaierror"

        it.driver.open_network(stack, opened)
        assert it.driver.network(stack) == opened
        assert fetches(it, name, world.OUTSIDE) == there
        assert fetches(it, name, world.NAME) == there, "by the resolver on the loopback"
        assert fetches(it, name, world.OUTSIDE, 9) == "ConnectionResetError"
        for address in (world.LOOPBACK, world.FORBIDDEN, "10.77.0.1", "10.77.0.12"):
            assert fetches(it, name, address).endswith("Error"), address
        assert fetches(it, name, "10.77.0.12", 22) == "OSError", "another stack's machine"

        it.driver.close_network(other)
        it.crash(stack)
        it.driver.start(name)
        it.await_ssh(name)
        assert fetches(it, name, world.NAME) == there, "a new keeper opens it again"

        (uplink,) = it.processes("uplink.py")
        os.kill(uplink, signal.SIGKILL)
        wait_for(lambda: it.driver.network(stack) == NETWORK, "it is noticed")
        assert fetches(it, name, world.OUTSIDE) == "OSError"
        it.driver.open_network(stack, opened)
        assert fetches(it, name, world.OUTSIDE) == there, "and mended"

        it.driver.open_network(stack, NETWORK)
        assert it.processes("uplink.py") == []
        assert fetches(it, name, world.OUTSIDE) == "OSError"
        it.driver.open_network(stack, opened)
        it.driver.close_network(stack)
    assert it.processes() == []


#: These need a world around them.
IN_A_WORLD: tuple[Callable[[Lab], None], ...] = (internet_is_opt_in_and_leads_nowhere_inside,)

CHECKS: tuple[Callable[[Lab], None], ...] = (
    a_machine_sees_its_own_size,
    it_has_no_more_processors_than_there_are,
    it_computes_no_more_than_its_cores,
    what_is_not_enforced_is_said,
    machines_share_folders_and_down_removes_them,
    what_is_a_link_in_the_image_is_not_shared,
)


def main() -> None:
    checks, rootfs = sys.argv[1:]
    for check in (*CHECKS, *IN_A_WORLD):
        if check.__name__ in checks.split(","):
            print(check.__name__)  # noqa: T201 - shown when the check fails
            with lab(Path(rootfs)) as it:
                check(it)


if __name__ == "__main__":
    main()
