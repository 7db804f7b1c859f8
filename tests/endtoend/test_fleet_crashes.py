"""Kill the server before and after every step of a lease's life and of cleaning (R-D3, R-D7)."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator

import httpx
import pytest

from endtoend.fleet_crashes import dies_and_returns, every_step_of, in_order, opens_nothing
from endtoend.fleet_rig import Fleet, fleet

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def its() -> Iterator[Fleet]:
    with fleet(3, interval=3.0) as made:
        yield made


@every_step_of("rent")
def test_a_rent_that_was_cut_off_ends_in_a_lease_that_can_be_used(alive, ada, step, moment):
    """R-D3: the same request, sent again, finds the lease it began."""
    alive.doom("rent", step, moment)
    asked = {"public_key": ada.public_key, "seconds": 3600, "patience": 0}
    once = secrets.token_hex(8)
    with contextlib.suppress(httpx.TransportError):
        alive.post("rent", ada.token, idempotency=once, **asked)
    dies_and_returns(alive)
    lease = alive.post("rent", ada.token, idempotency=once, **asked)["id"]
    found = alive.await_lease(lease, "active")
    assert len(found["nodes"]) == 1
    assert alive.ssh(lease, ada.key, "id -un").stdout == f"{lease}\n"
    in_order(alive)
    alive.release(ada, lease)
    opens_nothing(alive, lease, ada)


@every_step_of("release")
def test_a_release_that_was_cut_off_ends_the_lease(alive, ada, step, moment):
    """R-D4: what the client left goes as well."""
    lease = alive.rent(ada)
    machine = alive.machine_of(lease)
    left = "echo mine > /tmp/left-$USER; setsid sleep 1000 >/dev/null 2>&1 </dev/null &"
    assert alive.ssh(lease, ada.key, left).returncode == 0
    alive.doom("release", step, moment)
    with contextlib.suppress(httpx.TransportError):
        alive.post("release", ada.token, lease=lease)
    dies_and_returns(alive)
    alive.await_lease(lease, "ended")
    opens_nothing(alive, lease, ada)
    in_order(alive)
    alive.await_node(machine)
    assert alive.root(machine, "ls /tmp; ps ax -o args=").stdout.count(lease) == 0
    assert "sleep 1000" not in alive.root(machine, "ps ax -o args=").stdout


@every_step_of("clean")
def test_a_cleaning_that_was_cut_off_is_finished_before_the_machine_serves(
    alive, ada, step, moment
):
    """R-D6: here of a machine that joins again with somebody's leftovers."""
    for each in alive.machines:  # one that comes back later would be cleaned by whom we doom
        alive.await_node(each)
    machine = next(iter(alive.machines))
    alive.root(machine, LEFTOVER)
    alive.doom("clean", step, moment)
    labelled = ("--label", "just=cleaned")
    alive.join(machine, *labelled, ok=False)  # the answer may be lost with the server
    dies_and_returns(alive)
    alive.join(machine, *labelled)
    lease = alive.rent(ada, labels={"just": "cleaned"})
    in_order(alive)
    assert alive.ssh(lease, ada.key, "hostname").stdout == f"{machine}\n"
    assert (
        alive.root(machine, "find / -xdev -uid 61150; ps -u 61150 -o pid=", ok=False).output == ""
    )


LEFTOVER = """
groupadd -g 61150 l-leftover && useradd -g 61150 -u 61150 -m l-leftover
setsid runuser -u l-leftover -- sleep 1000 >/dev/null 2>&1 </dev/null &
until pgrep -u l-leftover >/dev/null; do sleep 0.05; done
"""


def test_in_the_end_every_machine_is_clean_and_serves(alive):
    """R-D6, R-D7: also those that were lost on the way."""
    for machine in alive.machines:
        alive.await_node(machine)
    in_order(alive)
    for machine in alive.machines:
        assert alive.accounts(machine) == set()
