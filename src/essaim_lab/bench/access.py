"""From a wish to a shell: rent until a command has run, and lost until logged in again."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from essaim_lab.bench.lab import PATIENCE, Lab, fleet
from essaim_lab.bench.load import percentile
from essaim_lab.bench.rows import CannotRunError, Peer, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

RATE = 2.0  #: rents that arrive each second
SEED = 20
INTERVAL = 2.0
MIDDLE, SLOWEST, AGAIN = 0.5, 1.5, 10.0
COMMAND = "POST /api/rent, then `ssh LEASE@gateway true` until it succeeds"


def measure(*, quick: bool) -> Iterator[Row]:
    """Rent from sandbox machines, natively and by playbook; then lose one."""
    rents, played = (3, 1) if quick else (60, 8)
    with fleet(rents + 1) as lab:
        native = opened(lab, rents)
        yield from rows(native, _by_playbook(lab, played))
    with fleet(3, interval=INTERVAL) as lab:
        yield Row(
            what=f"machine killed to logged in on another, {INTERVAL:g} s between checks",
            value=logged_in_again(lab),
            unit="s",
            command="the machine's processes end at once; `ssh LEASE@gateway true` until it works",
            most=AGAIN,
            note="three missed beats or checks mean lost: 6 s of these are detection",
        )


def rows(native: list[float], played: list[float] | str) -> Iterator[Row]:
    """Give the lines of both provisioners; a text says why there is none of the playbook."""
    for share, most in ((50, MIDDLE), (99, SLOWEST)):
        name = "the same with Ansible's provisioner"
        peer = (
            Peer(name=name, note=f"not measured: {played}")
            if isinstance(played, str)
            else Peer(name=name, value=percentile(played, share), command=COMMAND)
        )
        yield Row(
            what=f"rent to first command through the gateway, {RATE:g} rents/s: p{share}",
            value=percentile(native, share),
            unit="s",
            command=COMMAND,
            most=most,
            peer=peer,
            note=f"{len(native)} rents, those of the playbook {len(played)}",
        )


def arrivals(count: int) -> list[float]:
    """Seconds at which rents arrive: independent of each other, and the same each time."""
    dice = random.Random(SEED)  # noqa: S311 - nothing is kept secret with it
    at, found = 0.0, []
    for _ in range(count):
        found.append(at)
        at += dice.expovariate(RATE)
    return found


def opened(lab: Lab, count: int) -> list[float]:
    """Let rents arrive whether or not those before are served; seconds each took, all released."""
    began = time.perf_counter()

    def one(at: float) -> tuple[float, str]:
        time.sleep(max(0.0, began + at - time.perf_counter()))
        return lab.first_command()

    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(one, arrivals(count)))
    everybody = len(lab.stack.machines)
    for _, lease in found:
        lab.release(lease)
    lab.wait(lambda: len(lab.ready()) == everybody, "not all machines came back")
    return [seconds for seconds, _ in found]


def _by_playbook(lab: Lab, count: int) -> list[float] | str:
    try:
        lab.use_ansible()
        return opened(lab, count)
    except CannotRunError as error:
        return str(error).splitlines()[0][:80]


def logged_in_again(lab: Lab) -> float:
    """Kill the machine of a lease; seconds until its owner has a shell at the same address."""
    _, lease = lab.first_command()
    before = lab.ssh(lease, "hostname").stdout
    lab.kill(lease)
    began = time.perf_counter()
    while True:
        said = lab.ssh(lease, "hostname")
        if said.returncode == 0 and said.stdout != before:
            return time.perf_counter() - began
        if time.perf_counter() - began > PATIENCE:
            raise CannotRunError(f"{lease} was not moved within {PATIENCE:.0f} s")
        time.sleep(0.05)
