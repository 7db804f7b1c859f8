"""Machines that are lost while the server dies, too: nobody loses their files (R-D3, R-D6)."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator

import pytest

from endtoend.fleet_crashes import dies_and_returns, every_step_of, in_order, opens_nothing
from endtoend.fleet_rig import Fleet, fleet, wait_for

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

FILE = "kept through everything"


@pytest.fixture(scope="module")
def its() -> Iterator[Fleet]:
    # Those that are well are not given up while the server that has died comes back.
    with fleet(4, interval=2.0) as made:
        yield made


@every_step_of("migrate")
def test_a_move_that_was_cut_off_ends_on_another_machine_with_the_files(alive, ada, step, moment):
    """R-D6: at the same address; half of the lost machines are dead, half only silent."""
    lease = alive.rent(ada)
    assert alive.ssh(lease, ada.key, f"echo {FILE} > work").returncode == 0
    wait_for(lambda: copied(alive, lease), "the home was copied with its file")
    machine, dead = alive.machine_of(lease), moment == "before"
    alive.doom("migrate", step, moment)
    if dead:
        alive.cut_power(machine)
    else:
        alive.signal_agent(machine, "STOP")
    dies_and_returns(alive)
    wait_for(lambda: moved(alive, lease, machine), "the lease is active on another machine")
    found = wait_for(lambda: alive.ssh(lease, ada.key, "cat work").stdout, "the file is there")
    assert found == f"{FILE}\n"
    if dead:
        alive.power_on(machine)
        alive.start_agent(machine)
    else:
        alive.signal_agent(machine, "CONT")
    alive.release(ada, lease)
    opens_nothing(alive, lease, ada)


def moved(its: Fleet, lease: str, machine: str) -> bool:
    return its.lease(lease)["state"] == "active" and its.machine_of(lease) != machine


def copied(its: Fleet, lease: str) -> bool:
    """Whether the server has a copy of the home with the file in it."""
    for path in (its.app.home / "homes" / lease).rglob("*"):
        with (
            contextlib.suppress(OSError, EOFError, tarfile.TarError),
            tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as archive,
        ):
            if any(name.endswith("work") for name in archive.getnames()):
                return True
    return False


def test_in_the_end_every_machine_is_clean_and_serves(alive):
    """R-D6, R-D7: also those that were lost on the way."""
    for machine in alive.machines:
        alive.await_node(machine)
    in_order(alive)
    for machine in alive.machines:
        assert alive.accounts(machine) == set()
