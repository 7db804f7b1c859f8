"""What every driver promises; each function is one promise, tried on a real driver.

Run as a program (`contract.py CHECK ROOTFS`) it tries one of them without pytest.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from drivers.lab import IMAGE, NETWORK, PATIENCE, Lab, lab, wait_for
from essaim.model.errors import EssaimError, RejectedError, TransientError, UnknownError
from essaim.model.machines import Dials, Networks, Power
from essaim.model.names import MachineName
from essaim.model.stacks import Network


def refuses(kind: type[EssaimError], action: Callable[[], object]) -> EssaimError:
    try:
        action()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def in_process(action: Callable[[], object]) -> int:
    """Start another process that does something and ends."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    return pid


def succeeded(pid: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def a_new_machine_is_off(it: Lab) -> None:
    name = it.create(it.machine(it.stack(), 1))
    seen = it.seen(name)
    assert seen is not None
    assert (seen.power, seen.boot) == (Power.OFF, "")
    assert (seen.address, seen.image) == ("10.77.0.11", IMAGE.digest)


def creating_twice_changes_nothing(it: Lab) -> None:
    stack = it.stack()
    (name,) = it.up(stack, 1)
    it.run(name, "echo mine > /root/file")
    before = it.driver.observe(stack)
    it.create(it.machine(stack, 1))
    assert it.driver.observe(stack) == before
    assert it.run(name, "cat /root/file") == "mine\n"


def starting_twice_changes_nothing(it: Lab) -> None:
    (name,) = it.up(it.stack(), 1)
    before = it.seen(name)
    it.driver.start(name)
    assert it.seen(name) == before


def stopping_keeps_the_disk_and_starting_makes_a_new_boot(it: Lab) -> None:
    (name,) = it.up(it.stack(), 1)
    first = it.seen(name)
    it.run(name, "echo mine > /root/file; rm /etc/issue; echo 1 > /run/gone")
    for _ in range(2):
        it.driver.stop(name)
        seen = it.seen(name)
        assert seen is not None
        assert (seen.power, seen.boot) == (Power.OFF, "")
    it.driver.start(name)
    it.await_ssh(name)
    again = it.seen(name)
    assert first is not None
    assert again is not None
    assert again.boot not in ("", first.boot)
    assert (
        it.run(name, "cat /root/file; ls /etc/issue /run/gone 2>&1 | grep -c such") == "mine\n2\n"
    )


def stopping_asks_before_it_takes_the_power(it: Lab) -> None:
    (name,) = it.up(it.stack(), 1)
    script = "trap 'echo saved > /root/saved; exit' TERM; : > /root/ready; sleep 600 & wait"
    it.run(name, f"setsid sh -c {script!r} >/dev/null 2>&1 </dev/null &")
    wait_for(lambda: it.ssh(name, "test -e /root/ready").returncode == 0, "the trap is set")
    it.driver.stop(name)
    it.driver.start(name)
    it.await_ssh(name)
    assert it.run(name, "cat /root/saved") == "saved\n"


def destroying_removes_it_whatever_its_power(it: Lab) -> None:
    stack = it.stack()
    on, off = it.up(stack, 1)[0], it.create(it.machine(stack, 2))
    for _ in range(2):
        it.driver.destroy(on)
        it.driver.destroy(off)
        assert list(it.driver.observe(stack)) == []
    it.driver.destroy(MachineName("nowhere", "m1"))


def a_name_and_an_address_can_be_used_again(it: Lab) -> None:
    stack = it.stack()
    (name,) = it.up(stack, 1)
    it.run(name, "echo old > /root/file")
    it.driver.destroy(name)
    it.up(stack, 1)
    assert it.ssh(name, "cat /root/file").returncode == 1
    it.driver.destroy(name)
    other = it.create(it.machine(stack, 2, address="10.77.0.11"))
    it.driver.start(other)
    it.await_ssh(other)
    assert it.run(other, "hostname") == "m2\n"


def observing_changes_nothing(it: Lab) -> None:
    assert list(it.driver.observe("nowhere")) == []
    assert it.driver.network("nowhere") is None
    stack = it.stack()
    it.up(stack, 1)
    it.create(it.machine(stack, 2))
    before = it.driver.observe(stack)
    assert [one.power for one in before] == [Power.ON, Power.OFF]
    assert all(it.driver.observe(stack) == before for _ in range(5))


def a_killed_machine_is_seen_off_and_can_be_started(it: Lab) -> None:
    stack = it.stack()
    (name,) = it.up(stack, 1)
    it.run(name, "echo mine > /root/file")
    (first,) = it.first_processes(stack)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: not it.is_on(name), "it is seen off")
    it.driver.start(name)
    it.await_ssh(name)
    assert it.run(name, "cat /root/file") == "mine\n"


def after_a_crash_all_is_off_and_comes_back_with_its_disk(it: Lab) -> None:
    stack = it.stack()
    (name,) = it.up(stack, 1)
    it.run(name, "echo mine > /root/file; sync")
    it.crash(stack)
    seen = it.seen(name)
    assert seen is not None
    assert (seen.power, seen.boot) == (Power.OFF, "")
    refuses(TransientError, lambda: it.driver.dial(name, 22))
    it.driver.stop(name)
    it.driver.start(name)
    it.await_ssh(name)
    assert it.run(name, "cat /root/file") == "mine\n"
    it.crash(stack)
    it.driver.destroy(name)
    assert list(it.driver.observe(stack)) == []


def after_a_crash_closing_leaves_nothing(it: Lab) -> None:
    stack = it.stack()
    (name,) = it.up(stack, 1)
    it.run(name, "mkdir -p /opt/a/b; chown -R 42:42 /opt/a; chmod 0 /opt/a")
    it.crash(stack)
    it.driver.close_network(stack)
    wait_for(lambda: not it.processes(), "its processes have ended")
    assert {what: left for what, left in it.traces().items() if left} == {}


def machines_know_each_other_by_name(it: Lab) -> None:
    stack = it.stack()
    one, two = it.up(stack, 1, 2)
    assert it.run(one, "hostname; getent hosts m1 | cut -d' ' -f1") == "m1\n10.77.0.11\n"
    assert it.run(one, "ping -c1 -W5 -q m2 >/dev/null && echo yes") == "yes\n"
    (three,) = it.up(stack, 3)
    for name in (one, two):
        assert it.run(name, "ping -c1 -W5 -q m3 >/dev/null && echo yes") == "yes\n"
    it.driver.destroy(three)
    assert it.ssh(one, "getent hosts m3").returncode == 2


def the_pinned_host_key_answers_and_no_other_passes(it: Lab) -> None:
    (name,) = it.up(it.stack(), 1)
    assert it.run(name, "echo yes") == "yes\n"
    assert "verification failed" in it.ssh(name, "true", pin=it.new_key("wrong")).stderr


def only_the_given_key_opens_the_door(it: Lab) -> None:
    (name,) = it.up(it.stack(), 1)
    assert "Permission denied (publickey)" in it.ssh(name, "true", key=it.new_key("other")).stderr


def two_stacks_share_a_cidr_side_by_side(it: Lab) -> None:
    (one,) = it.up(it.stack("one"), 1)
    (two,) = it.up(it.stack("two"), 1)
    it.run(one, "echo one > /root/file")
    it.run(two, "echo two > /root/file")
    assert it.run(one, "cat /root/file") == "one\n"
    it.driver.close_network("one")
    assert it.run(two, "cat /root/file") == "two\n"


def a_taken_or_foreign_address_is_refused(it: Lab) -> None:
    stack = it.stack()
    it.create(it.machine(stack, 1))
    wrong = ("10.77.0.11", "10.77.0.0", "10.77.0.1", "10.77.0.255", "192.0.2.7", "m7", "10.77.0")
    for address in wrong:
        machine = it.machine(stack, 2, address=address)
        refuses(RejectedError, lambda machine=machine: it.create(machine))  # type: ignore[misc]
    assert len(it.driver.observe(stack)) == 1


def a_network_is_what_it_was_opened_as(it: Lab) -> None:
    stack = it.stack()
    assert isinstance(it.driver, Networks)
    it.driver.open_network(stack, NETWORK)
    assert it.driver.network(stack) == NETWORK
    refuses(RejectedError, lambda: it.driver.open_network(stack, Network(cidr="10.78.0.0/24")))
    for cidr in ("10.77.0.0/31", "10.77.0.1/24", "fd00::/64", "here"):
        network = Network(cidr=cidr)
        refuses(RejectedError, lambda n=network: it.driver.open_network("bad", n))  # type: ignore[misc]
    assert it.driver.network("bad") is None


def what_does_not_exist_cannot_start(it: Lab) -> None:
    stack = it.stack()
    refuses(UnknownError, lambda: it.driver.start(MachineName(stack, "m1")))
    refuses(UnknownError, lambda: it.driver.start(MachineName("nowhere", "m1")))
    refuses(RejectedError, lambda: it.driver.start(MachineName("../etc", "m1")))
    refuses(RejectedError, lambda: it.create(it.machine("../etc", 1)))
    named = replace(it.machine(stack, 1), name=MachineName(stack, "../m1"))
    refuses(RejectedError, lambda: it.create(named))
    it.driver.stop(MachineName(stack, "m1"))
    it.driver.stop(MachineName("nowhere", "m1"))


def a_dial_that_fails_says_so_soon(it: Lab) -> None:
    stack = it.stack()
    (on,) = it.up(stack, 1)
    off = it.create(it.machine(stack, 2))
    assert isinstance(it.driver, Dials)
    assert "refused" in str(refuses(TransientError, lambda: it.driver.dial(on, 4)))
    assert "is off" in str(refuses(TransientError, lambda: it.driver.dial(off, 22)))
    nowhere = MachineName("nowhere", "m1")
    assert "is off" in str(refuses(TransientError, lambda: it.driver.dial(nowhere, 22)))
    assert "is off" in it.ssh(off, "true").stderr


def a_slow_dial_holds_up_nobody(it: Lab) -> None:
    (name,) = it.up(it.stack(), 1)
    # A listener that never accepts, with its queue full, lets the next caller wait.
    program = (
        "import socket, time; s = socket.socket(); s.bind(('', 9)); s.listen(0);"
        "open('/root/ready', 'w'); time.sleep(600)"
    )
    it.run(name, f'setsid python3 -c "{program}" >/dev/null 2>&1 </dev/null &')
    wait_for(lambda: it.ssh(name, "test -e /root/ready").returncode == 0, "it listens")
    queued = [it.driver.dial(name, 9)]
    with ThreadPoolExecutor(8) as pool:
        slow = [pool.submit(it.driver.dial, name, 9) for _ in range(7)]
        answered = 0
        while not all(dial.done() for dial in slow):
            assert it.banner(name).startswith(b"SSH-")
            answered += 1
    # One answer proves it: whoever is held up hears nothing until its own patience ends.
    assert answered
    for dial in slow:
        if dial.exception():
            assert "no answer" in str(dial.exception())
        else:
            queued.append(dial.result())
    assert len(queued) < 8
    for conn in queued:
        conn.close()


def two_processes_create_one_machine(it: Lab) -> None:
    machine = it.machine("lab", 1)
    it._stacks.append("lab")
    it.host_key("m1")
    makers = [in_process(lambda: it.create(machine)) for _ in range(6)]
    assert all([succeeded(maker) for maker in makers])  # noqa: C419 - each must be waited for
    assert [one.name for one in it.driver.observe("lab")] == [machine.name]
    it.up("lab", 1)


def many_threads_at_once(it: Lab) -> None:
    stack = it.stack()
    for number in range(1, 25):
        it.host_key(f"m{number}")
    with ThreadPoolExecutor(24) as pool:
        list(pool.map(lambda number: it.up(stack, number), range(1, 25)))
        assert {one.power for one in it.driver.observe(stack)} == {Power.ON}
        names = [one.name for one in it.driver.observe(stack)]
        assert len(names) == 24
        list(pool.map(it.driver.destroy, names[:12]))
    assert len(it.driver.observe(stack)) == 12
    assert len(it.first_processes(stack)) == 12


def a_creator_may_be_killed_at_any_moment(it: Lab) -> None:
    it._stacks.append("lab")
    machine = it.machine("lab", 1)
    it.host_key("m1")
    for number in range(12):
        maker = in_process(lambda: it.up("lab", 1))
        time.sleep(random.uniform(0, 0.02 * number))  # the moment is what is tried
        os.kill(maker, signal.SIGKILL)
        os.waitpid(maker, 0)
        if number % 3 == 2:
            it.driver.close_network("lab")
    it.up("lab", 1)
    assert [one.name for one in it.driver.observe("lab")] == [machine.name]
    assert it.run(machine.name, "hostname") == "m1\n"
    assert len(it.first_processes("lab")) == 1


def closing_leaves_nothing(it: Lab) -> None:
    stack = it.stack()
    names = it.up(stack, 1, 2)
    it.create(it.machine(stack, 3))
    for name in names:
        it.run(name, "mkdir -p /opt/a/b; chmod 0 /opt/a; touch /opt/c; chown 42:42 /opt/c")
    for _ in range(2):
        it.driver.close_network(stack)
        assert list(it.driver.observe(stack)) == []
        assert it.driver.network(stack) is None
    wait_for(lambda: not it.processes(), "its processes have ended")
    assert {what: left for what, left in it.traces().items() if left} == {}


def two_may_close_at_once(it: Lab) -> None:
    stack = it.stack()
    it.up(stack, 1, 2, 3)
    closers = [in_process(lambda: it.driver.close_network(stack)) for _ in range(4)]
    assert all([succeeded(closer) for closer in closers])  # noqa: C419 - each must be waited for
    assert it.driver.network(stack) is None


CHECKS: tuple[Callable[[Lab], None], ...] = (
    a_new_machine_is_off,
    creating_twice_changes_nothing,
    starting_twice_changes_nothing,
    stopping_keeps_the_disk_and_starting_makes_a_new_boot,
    stopping_asks_before_it_takes_the_power,
    destroying_removes_it_whatever_its_power,
    a_name_and_an_address_can_be_used_again,
    observing_changes_nothing,
    a_killed_machine_is_seen_off_and_can_be_started,
    after_a_crash_all_is_off_and_comes_back_with_its_disk,
    after_a_crash_closing_leaves_nothing,
    machines_know_each_other_by_name,
    the_pinned_host_key_answers_and_no_other_passes,
    only_the_given_key_opens_the_door,
    two_stacks_share_a_cidr_side_by_side,
    a_taken_or_foreign_address_is_refused,
    a_network_is_what_it_was_opened_as,
    what_does_not_exist_cannot_start,
    a_dial_that_fails_says_so_soon,
    a_slow_dial_holds_up_nobody,
    two_processes_create_one_machine,
    many_threads_at_once,
    a_creator_may_be_killed_at_any_moment,
    closing_leaves_nothing,
    two_may_close_at_once,
)


def main() -> None:
    check, rootfs = sys.argv[1:]
    print(check, PATIENCE)  # noqa: T201 - shown when the check fails
    with lab(Path(rootfs)) as it:
        next(one for one in CHECKS if one.__name__ == check)(it)


if __name__ == "__main__":
    main()
