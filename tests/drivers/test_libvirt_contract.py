"""The libvirt driver keeps the promises of a driver, with machines that boot."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from drivers import contract
from drivers.lab import NETWORK
from patience import in_test_libvirt

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(1200),
    in_test_libvirt,
]

#: Promises that this driver keeps otherwise, or not, and why.
NOT_HERE = {
    contract.machines_know_each_other_by_name: "the role `names` does that",
    contract.a_dial_that_fails_says_so_soon: "only port 22 can be dialled; see below",
    contract.a_slow_dial_holds_up_nobody: "likewise",
    contract.many_threads_at_once: "24 emulated machines; see test_libvirt_server",
    contract.a_creator_may_be_killed_at_any_moment: "see test_libvirt_server",
}
HERE = [check for check in contract.CHECKS if check not in NOT_HERE]


@pytest.fixture(scope="module")
def tiny(server) -> Path:
    """The smallest image that is shipped, as a disk."""
    from essaim.config.images import find_image
    from essaim.model.machines import Form
    from testcache import images

    image = find_image("tiny", str(Path(__file__).parents[2]))
    return images().build(image, lambda _line: None, Form.DISK)


@pytest.fixture
def it(server, tiny):
    from drivers.libvirt_lab import virt_lab

    with virt_lab(server, tiny) as made:
        yield made


@pytest.mark.parametrize("check", HERE, ids=[check.__name__ for check in HERE])
def test_it_keeps_the_promise(it, check):  # R-A3
    check(it)


def test_a_dial_says_soon_what_cannot_be(it):
    from essaim.model.errors import RejectedError, TransientError
    from essaim.model.names import MachineName

    off = it.create(it.machine(it.stack(), 1))
    for name in (off, MachineName("nowhere", "m1")):
        error = contract.refuses(TransientError, lambda name=name: it.driver.dial(name, 22))
        assert "is off" in str(error)
    assert "is off" in it.ssh(off, "true").stderr
    assert "only its port 22" in str(
        contract.refuses(RejectedError, lambda: it.driver.dial(off, 80))
    )


def test_machines_of_a_stack_meet_and_those_of_another_do_not(it):  # R-A4
    one, two = it.up(it.stack("one"), 1, 2)
    (other,) = it.up(it.stack("two"), 3)
    assert "1 packets received" in it.run(one, "ping -c 1 -W 20 10.77.0.12")
    assert "1 packets received" in it.run(two, "ping -c 1 -W 20 10.77.0.11")
    assert it.ssh(other, "ping -c 1 -W 3 10.77.0.11").returncode == 1


def test_a_machine_reaches_nothing_of_the_server_unless_the_stack_says_so(it):
    """What listens on the server's loopback alone is what a tenant must not reach first of all."""
    with socket.create_server(("127.0.0.1", 0)) as secret:
        secret.settimeout(0)

        def is_reached() -> bool:
            it.ssh(name, f"timeout 10 nc 10.0.2.2 {secret.getsockname()[1]} </dev/null")
            try:
                secret.accept()[0].close()
            except BlockingIOError:
                return False
            return True

        stack = it.stack()
        (name,) = it.up(stack, 1)
        assert not is_reached()
        opened = replace(NETWORK, internet=True)
        it.driver.open_network(stack, opened)
        assert it.driver.network(stack) == opened
        it.driver.stop(name)
        it.driver.start(name)
        it.await_ssh(name)
        assert is_reached(), "from its next start on"
        it.driver.open_network(stack, NETWORK)
        assert it.driver.network(stack) == NETWORK
