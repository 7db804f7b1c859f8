"""A process may be killed between any two calls: nothing is lost, nothing is there twice.

The cluster is a simulated one.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from drivers.contract import in_process
from drivers.lab import NETWORK
from drivers.proxmox_lab import TEMPLATE, prox_lab, until_done
from essaim.drivers.proxmox import clerk
from essaim.drivers.proxmox.api import Api
from essaim.drivers.proxmox.driver import Proxmox
from essaim.model.errors import NotYetError
from essaim.model.machines import Power
from essaim.model.names import MachineName
from essaim.model.stacks import Size
from essaim.store.database import open_database
from essaim.store.limits import Ask, Limits
from patience import in_test_all


@pytest.fixture
def it(tmp_path):
    with prox_lab(tmp_path) as made:
        yield made


class KilledError(BaseException):
    """Stands for kill -9: nothing that is written for errors sees it."""


def dying(monkeypatch, driver, *, call: int, before: bool):
    """Let a driver's process die at its n-th call that changes something."""
    real = Api._ask
    count = 0
    dead = False

    def ask(self, url, method, path, given):
        nonlocal count, dead
        if self is not driver.api:
            return real(self, url, method, path, given)
        if dead:
            raise KilledError
        if method != "GET":
            count += 1
            if count == call:
                dead = True
                if not before:
                    real(self, url, method, path, given)
                raise KilledError
        return real(self, url, method, path, given)

    monkeypatch.setattr(Api, "_ask", ask)
    return lambda: dead


#: Calls that change something: clone, resize, config, start; and whether it died before it.
MOMENTS = [(call, before) for call in range(1, 5) for before in (True, False)]
AT_ONCE = [(1, False), (2, True), (4, False)]


@pytest.mark.parametrize(
    ("call", "before"),
    [pytest.param(*moment, marks=[] if moment in AT_ONCE else [in_test_all]) for moment in MOMENTS],
)
def test_whoever_comes_after_one_that_died_ends_what_it_began(it, monkeypatch, call, before):
    # R-B2
    it.stack()
    first, second = it.new_driver(), it.new_driver()
    is_dead = dying(monkeypatch, first, call=call, before=before)
    machine = replace(it.machine("lab", 1), size=Size(cores=1, memory=256, disk=12))

    def goes_on(driver) -> None:
        driver.create(machine, NETWORK, TEMPLATE, it.seed(machine))
        driver.start(machine.name)

    create, start = super(type(first), first).create, super(type(first), first).start

    def until_dead() -> None:
        with suppress(KilledError, NotYetError):
            create(machine, NETWORK, TEMPLATE, it.seed(machine))
            start(machine.name)
        if not is_dead():
            raise NotYetError("alive", after=0.05)

    until_done(until_dead)
    assert is_dead()
    monkeypatch.undo()
    left_alone(monkeypatch)
    goes_on(second)
    (guest,) = it.guests(ours=False).values()
    assert guest.running
    assert guest.name == "m1"
    assert "size=12G" in guest.conf["rootfs"]
    (seen,) = second.observe("lab")
    assert seen.power is Power.ON
    second.destroy(machine.name)
    assert it.guests(ours=False) == {}
    assert it.held() == {}


def test_those_who_wait_for_a_slot_do_not_keep_what_their_dead_forerunner_left(it, monkeypatch):
    """R-B2: the first that waits finds the gate full, and the use is that of one behind it."""
    it.stack()
    left_alone(monkeypatch)
    driver = it.new_driver(slots={"clone": 1})
    gate = driver.machines.making._gate("storage", "vol-ceph-1")
    database = open_database(it.url)
    Limits(database).take([Ask(holder="pve lab/m8 clone", gates=(gate,))])
    database.close()
    machines = [it.machine("lab", number) for number in range(1, 9)]
    plain = super(type(driver), driver).create

    def made() -> None:
        for machine in machines:  # none of them gives way: all stand in line at once
            with suppress(NotYetError):
                plain(machine, NETWORK, TEMPLATE, it.seed(machine))
        if len(it.guests()) < 8:
            raise NotYetError(f"there are {it.guests(ours=False)}", after=0.05)

    monkeypatch.setattr(clerk, "_REAP_EVERY", 0.5)
    until_done(made)


def left_alone(monkeypatch) -> None:
    """A use whose owner died before its task was known is given back sooner than in a minute."""
    from essaim.drivers.proxmox import uses

    monkeypatch.setattr(uses, "_LEFT_ALONE", 0.5)


def test_what_is_destroyed_while_it_is_made_elsewhere_does_not_come_back(it):  # R-B2
    it.stack()
    first, second = it.new_driver(), it.new_driver()
    machine = it.machine("lab", 1)
    plain = super(type(first), first).create
    with pytest.raises(NotYetError):
        plain(machine, NETWORK, TEMPLATE, it.seed(machine))
    second.destroy(machine.name)

    def settled() -> None:
        if any(not job.over for job in list(first.clerk._jobs.values())):
            raise NotYetError("the first still works", after=0.05)

    until_done(settled)
    second.destroy(machine.name)
    assert it.guests(ours=False) == {}
    assert it.held() == {}
    assert it.uses() == []


@in_test_all
def test_real_processes_are_killed_at_any_moment(it):  # R-B2
    """Twenty of them, each killed a little later than the one before."""
    it.stack()
    moments = [0.05 * number for number in range(1, 21)]
    for moment in moments:
        maker = in_process(lambda: [it.up("lab", number) for number in range(1, 5)])
        time.sleep(moment)  # the moment is what is tried
        os.kill(maker, signal.SIGKILL)
        os.waitpid(maker, 0)
    it._drivers.clear()
    it.up("lab", 1, 2, 3, 4)
    assert sorted(guest.name for guest in it.guests(ours=False).values()) == [
        "m1", "m2", "m3", "m4",
    ]  # fmt: skip
    for number in range(1, 5):
        it.driver.destroy(MachineName("lab", f"m{number}"))
    assert it.guests(ours=False) == {}
    assert it.held() == {}


def test_a_clone_that_died_with_its_node_is_not_taken_for_a_machine(tmp_path):
    """Unlocked by whoever brought the node back, it looks finished, and has no disk."""
    with prox_lab(tmp_path, copies=3) as it:
        machine = it.machine(it.stack(), 1)
        it.lose_node_of_next_clone()
        with pytest.raises(NotYetError):
            Proxmox.create(it.driver, machine, NETWORK, TEMPLATE, it.seed(machine))
        until_done(it.lost)
        (half,) = it.guests(ours=False).values()
        assert "rootfs" not in half.conf
        it.sim.fault("node", name=half.node, lost=False)
        other = it.new_driver()
        other.create(machine, NETWORK, TEMPLATE, it.seed(machine))
        other.start(machine.name)
        assert "rootfs" in it.guest(machine.name).conf
