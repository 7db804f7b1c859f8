"""Virtual time: it moves when everybody waits, and one client runs at a time."""

from __future__ import annotations

import threading

from essaim_lab.simulators.proxmox.clock import EPOCH, VirtualClock, WallClock


def test_time_stands_still_until_it_is_told_to_move():
    clock = VirtualClock()
    seen = []
    clock.kernel.after(5.0, lambda: seen.append(clock.now()))
    clock.settle()
    assert clock.now() == EPOCH
    assert not seen
    clock.advance(4.0)
    assert not seen
    assert clock.jump()
    assert seen == [EPOCH + 5.0]
    assert not clock.jump()


def _play(seconds: list[float]) -> list[tuple[float, str]]:
    clock, seen = VirtualClock(clients=len(seconds)), []

    def client(name: str, pause: float) -> None:
        with clock.client(int(pause)):
            for _ in range(3):
                clock.sleep(pause)
                seen.append((clock.now() - EPOCH, name))

    names = [f"{pause:g}" for pause in seconds]
    threads = [
        threading.Thread(target=client, args=pair) for pair in zip(names, seconds, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return seen


def test_clients_that_wait_move_time_and_are_woken_in_its_order():
    seen = _play([2.0, 3.0, 7.0])
    assert seen == sorted(seen)
    assert [when for when, name in seen if name == "3"] == [3.0, 6.0, 9.0]
    assert len(seen) == 9


def test_the_walls_time_goes_faster_by_the_speed():
    clock = WallClock(speed=1000.0)
    seen = threading.Event()
    clock.kernel.after(10.0, seen.set)
    assert clock.wait() <= 0.01
    deadline = threading.Event()
    for _ in range(1000):
        with clock.lock:
            clock.settle()
        if seen.is_set():
            return
        deadline.wait(0.01)
    raise AssertionError("it never happened")
