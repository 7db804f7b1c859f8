"""Lines at the templates of a simulated cluster, and what is known of machines just made."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest

from drivers.lab import NETWORK
from drivers.proxmox_lab import TEMPLATE, prox_lab
from essaim.drivers.proxmox.clerk import Clerk
from essaim.drivers.proxmox.cluster import Guest, Listing
from essaim.drivers.proxmox.jobs import Job
from essaim.model.errors import NotYetError
from essaim.model.names import MachineName
from essaim.plan.limits import Gate

FULL = replace(TEMPLATE, settings={**TEMPLATE.settings, "clone": "full"})


def test_one_leaves_a_line_only_if_it_is_long_and_it_has_not_begun():  # R-B2
    clerk = Clerk(None, None, "pve", lambda _node: True)
    clerk.close()  # so that nothing is begun
    first, second, third = (
        Job(key=f"lab/m{n} clone", what="", kind="", begin=str, gates=(Gate("t"), Gate("s")))
        for n in range(3)
    )
    for job in (first, second, third):
        with pytest.raises(NotYetError):
            clerk.do(job)
    assert clerk.lines() == Counter({"t": 3, "s": 3})
    first.since = 1.0
    assert not clerk.leave(first, 0)
    assert not clerk.leave(third, 2)
    assert clerk.leave(third, 1)
    assert clerk.lines() == Counter({"t": 2, "s": 2})
    assert not clerk.leave(third, 0)  # it has left


def test_one_in_a_long_line_moves_to_a_shorter_one_and_others_stay(tmp_path):  # R-B2
    # So slow that none of them is over before all have asked.
    with prox_lab(tmp_path, copies=2, nodes=2, speed=0.05) as it:
        it.stack()
        plain, clerk = super(type(it.driver), it.driver).create, it.driver.clerk

        def ask(number: int) -> Job:
            machine = it.machine("lab", number)
            with pytest.raises(NotYetError):
                plain(machine, NETWORK, FULL, it.seed(machine))
            return clerk.get(f"{machine.name} clone")

        asked = {number: ask(number) for number in range(1, 9)}
        here, there = (asked[number].gates[0].name for number in (1, 2))
        lines = {
            gate: [n for n in asked if asked[n].gates[0].name == gate] for gate in (here, there)
        }
        assert [len(line) for line in lines.values()] == [4, 4]
        for number in lines[there][1:]:
            assert clerk.drop(asked[number].key)
        second, *_, last = lines[here][1:]
        assert ask(last).gates[0].name == there
        assert ask(second).gates[0].name == here


def test_a_machine_just_made_is_known_until_a_listing_shows_it(tmp_path):  # R-B2
    with prox_lab(tmp_path) as it:
        machines, name = it.driver.machines, MachineName("lab", "m1")
        guest = Guest(id=50001, kind="lxc", node="pve1", lock="create")
        older = Listing(at=time.monotonic())
        machines.making.finished(name, guest)
        known = machines.making.new(name, 50001, older)
        assert machines.is_ours(known)
        assert (known.id, known.node) == (50001, "pve1")
        assert machines.making.new(name, 50002, older) is None
        assert machines.making.new(name, 50001, Listing(at=time.monotonic())) is None
        machines.making.forget(name)
        assert machines.making.new(name, 50001, older) is None
