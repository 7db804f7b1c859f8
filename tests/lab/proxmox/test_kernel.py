"""Simulated time: processes, locks, and stations that are shared."""

from __future__ import annotations

import pytest

from essaim_lab.simulators.proxmox.disks import done_by
from essaim_lab.simulators.proxmox.errors import PveError
from essaim_lab.simulators.proxmox.kernel import Kernel, Lock, Sleep, Station


class World:
    def __init__(self) -> None:
        self.kernel = Kernel(0.0)
        self.seen: list[tuple[float, str]] = []

    def spawn(self, name, process):
        def done(_result, error):
            self.seen.append((self.kernel.now, f"{name} {error or 'ok'}"))

        return self.kernel.spawn(process, done)

    def run(self) -> list[tuple[float, str]]:
        self.kernel.run(1000.0)
        return self.seen


@pytest.fixture
def world():
    return World()


def holding(lock, seconds, timeout, *, shared=False):
    hold = lock.take(timeout, "got timeout", shared=shared)
    try:
        yield hold
        yield Sleep(seconds)
    finally:
        hold.give_back()


def test_a_station_does_so_many_at_full_speed(world):
    station = Station(world.kernel, 2)
    for name in "ab":
        world.spawn(name, done_by(station, 10.0))
    assert world.run() == [(10.0, "a ok"), (10.0, "b ok")]


def test_a_station_with_more_to_do_shares_itself(world):
    station = Station(world.kernel, 2)
    for name in "abcd":
        world.spawn(name, done_by(station, 10.0))
    assert world.run() == [(20.0, f"{name} ok") for name in "abcd"]


def test_a_job_that_comes_later_slows_the_others_down(world):
    station = Station(world.kernel, 1)

    def later():
        yield Sleep(5.0)
        yield from done_by(station, 2.0)

    world.spawn("first", done_by(station, 10.0))
    world.spawn("later", later())
    assert world.run() == [(9.0, "later ok"), (12.0, "first ok")]


def test_a_killed_job_leaves_its_share_to_the_others(world):
    station = Station(world.kernel, 1)
    victim = world.spawn("victim", done_by(station, 10.0))
    world.spawn("other", done_by(station, 10.0))
    world.kernel.at(10.0, victim.kill)
    assert world.run() == [(15.0, "other ok")]


def test_a_lock_is_held_shared_by_many_and_alone_by_one(world):
    lock = Lock()
    for name in "ab":
        world.spawn(name, holding(lock, 5.0, 1.0, shared=True))
    world.spawn("alone", holding(lock, 1.0, 60.0))
    world.spawn("after", holding(lock, 1.0, 60.0, shared=True))
    assert world.run() == [(5.0, "a ok"), (5.0, "b ok"), (6.0, "alone ok"), (7.0, "after ok")]


def test_who_waits_too_long_for_a_lock_is_told_so_and_the_next_is_served(world):
    lock = Lock()
    world.spawn("first", holding(lock, 5.0, 1.0))
    world.spawn("hasty", holding(lock, 5.0, 1.0))
    world.spawn("patient", holding(lock, 5.0, 10.0))
    assert world.run() == [(1.0, "hasty got timeout"), (5.0, "first ok"), (10.0, "patient ok")]


def test_a_killed_process_frees_what_it_locked_and_says_nothing(world):
    lock = Lock()
    victim = world.spawn("victim", holding(lock, 100.0, 1.0))
    world.spawn("next", holding(lock, 1.0, 60.0))
    world.kernel.at(3.0, victim.kill)
    assert world.run() == [(4.0, "next ok")]
    assert not lock.taken


def test_an_interrupted_process_tidies_up(world):
    tidied = []

    def careful():
        try:
            yield Sleep(100.0)
        except PveError:
            yield Sleep(1.0)
            tidied.append(world.kernel.now)
            raise

    running = world.spawn("careful", careful())
    world.kernel.at(3.0, lambda: running.interrupt("received interrupt"))
    assert world.run() == [(4.0, "careful received interrupt")]
    assert tidied == [4.0]


def test_a_defect_of_a_process_is_remembered_and_time_goes_on(world):
    def broken():
        yield Sleep(1.0)
        raise KeyError("x")

    world.spawn("broken", broken())
    world.spawn("other", holding(Lock(), 2.0, 1.0))
    assert [name for _, name in world.run()][1] == "other ok"
    assert isinstance(world.kernel.defects[0], KeyError)
