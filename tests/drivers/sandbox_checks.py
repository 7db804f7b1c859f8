"""What sandbox machines promise beyond any driver's; tried as root and as a plain user.

Run as a program (`sandbox_checks.py CHECK ROOTFS`) it tries one of them without pytest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from drivers.lab import Lab, lab
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


CHECKS: tuple[Callable[[Lab], None], ...] = (
    a_machine_sees_its_own_size,
    it_has_no_more_processors_than_there_are,
    it_computes_no_more_than_its_cores,
    what_is_not_enforced_is_said,
)


def main() -> None:
    checks, rootfs = sys.argv[1:]
    for check in CHECKS:
        if check.__name__ in checks.split(","):
            print(check.__name__)  # noqa: T201 - shown when the check fails
            with lab(Path(rootfs)) as it:
                check(it)


if __name__ == "__main__":
    main()
