"""Whose a VMID is: a token that sees its pool alone, and what others left half made.

The cluster is a simulated one.  What is there is counted in the cluster itself.
"""

from __future__ import annotations

import contextlib
import json

import pytest

from drivers.lab import NETWORK
from drivers.proxmox_crash import SOURCES, Victim, count_is_right, quick
from drivers.proxmox_lab import TEMPLATE, prox_lab, until_done
from essaim.drivers.proxmox import holdings
from essaim.drivers.proxmox.driver import Proxmox
from essaim.drivers.proxmox.numbers import id_candidates
from essaim.model.errors import NotYetError, RejectedError, TransientError
from essaim.model.names import MachineName
from patience import in_test_all

#: The clerk of a process that is killed dies with it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
#: A storage on which a machine takes many times longer than anybody waits for an answer.
SLOW = 40.0
#: Every way to make a machine, by who sees its pool alone and by who sees all.
AT_ONCE = [("clone-qemu", "narrow"), ("clone-qemu", "wide"), ("archive", "narrow")]
CASES = [
    pytest.param(source, token, marks=[] if (source, token) in AT_ONCE else [in_test_all])
    for source in SOURCES
    for token in ("narrow", "wide")
]


def first_ids(it, name: MachineName, count: int) -> list[int]:
    """The numbers a machine is given, if nobody has them."""
    some = id_candidates(name, it.plane, (50000, 50999))
    return [next(some) for _ in range(count)]


# Numbers of guests that the token cannot see


def posts(it) -> int:
    requests = it.sim.cluster.tally.requests
    return sum(n for what, n in requests.items() if what.startswith("POST") and "clone" in what)


def test_every_id_that_was_refused_is_left_alone_and_not_only_the_last(tmp_path):
    with prox_lab(tmp_path) as it:
        it.stack()
        name = MachineName("lab", "m1")
        taken = first_ids(it, name, 5)
        it.sim.fault("foreign", ids=",".join(map(str, taken[:4])))
        it.up("lab", 1)
        assert {n for n, guest in it.guests().items() if guest.running} == {taken[4]}
        assert posts(it) == 5
        # Nor do others try them again, in another process.
        other = it.new_driver()
        assert other.machines.holdings.refused() == frozenset(taken[:4])
        it.driver.destroy(name)
        other.create(it.machine("lab", 1), NETWORK, TEMPLATE, it.seed(it.machine("lab", 1)))
        assert posts(it) == 6
        other.destroy(name)
        assert set(it.guests(ours=False)) == set(taken[:4])


def test_an_id_that_was_refused_is_tried_again_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(holdings, "_REFUSED_FOR", 0.0)
    with prox_lab(tmp_path) as it:
        it.stack()
        (first,) = first_ids(it, MachineName("lab", "m1"), 1)
        it.sim.fault("foreign", ids=str(first))
        it.up("lab", 1)
        it.driver.destroy(MachineName("lab", "m1"))
        it.typed_on_a_node(first)
        it.up("lab", 1)
        assert set(it.guests()) == {first}


def test_a_range_full_of_unseen_guests_says_so(tmp_path):
    with prox_lab(tmp_path) as it:
        it.stack()
        it.sim.fault("foreign", ids="50000-50003")
        driver = it.new_driver(ids="50000-50003")
        machine = it.machine("lab", 1)
        with pytest.raises(RejectedError) as error:
            until_done(lambda: driver.create(machine, NETWORK, TEMPLATE, it.seed(machine)))
        assert "every VMID of its ids, 50000-50003, is taken" in error.value.what
        assert "4 of them by guests this token cannot see" in error.value.what


# What a process that died had begun


@pytest.mark.parametrize(("source", "token"), CASES)
def test_what_is_still_being_made_is_waited_for_however_long_it_takes(
    tmp_path, monkeypatch, source, token
):
    """The request was carried out, its answer never seen: by what is there nobody can tell."""
    quick(monkeypatch)
    with prox_lab(tmp_path, SOURCES[source], narrow=token == "narrow", **slow_cluster(SLOW)) as it:
        machine = it.machine(it.stack(), 1)
        victim = Victim(it, monkeypatch)
        victim.dies_at(before=False)
        victim.goes_on_until_dead(machine)
        it.up("lab", 1)
        count_is_right(it, {"m1"})
        it.driver.destroy(machine.name)
        count_is_right(it, set())


def slow_cluster(seconds: float) -> dict:
    from essaim_lab.simulators.proxmox import StorageSettings

    return {
        "gib": 1,
        "storages": [StorageSettings(name="vol-ceph-1", copy_seconds=seconds, copies=64)],
    }


@pytest.mark.parametrize(("source", "token"), CASES)
def test_what_died_half_made_is_told_to_people_until_it_is_gone(
    tmp_path, monkeypatch, source, token
):
    """The machine is made under another id; to remove what is left is for an administrator."""
    quick(monkeypatch)
    with prox_lab(tmp_path, SOURCES[source], narrow=token == "narrow", **slow_cluster(4.0)) as it:
        name = it.machine(it.stack(), 1).name
        it.sim.fault("deaths", count=1, after=1.0)
        it.up("lab", 1)
        ((left, _),) = [
            each for each in it.guests(ours=False).items() if each[0] not in it.guests()
        ]
        kind = it.sim.cluster.guests[left].kind
        assert it.guest(name).running
        with pytest.raises(RejectedError) as error:
            it.driver.destroy(name)
        assert f"VMID {left}" in error.value.what
        typed = {"qemu": "qm", "lxc": "pct"}[kind]
        assert f"{typed} unlock {left}; {typed} destroy {left}" in error.value.hint
        assert it.guests() == {}
        other = it.new_driver()
        with pytest.raises(RejectedError, match=f"VMID {left}"):
            other.destroy(name)
        it.typed_on_a_node(left)
        other.destroy(name)
        count_is_right(it, set())


def test_a_creation_that_no_answer_came_to_is_not_begun_under_another_id(tmp_path, monkeypatch):
    """The server says 502 to a request that it carried out."""
    quick(monkeypatch)
    with prox_lab(tmp_path, SOURCES["image"], **slow_cluster(SLOW)) as it:
        machine = it.machine(it.stack(), 1)
        victim = Victim(it, monkeypatch)
        victim.loses_the_answer_to("POST")
        until_done(lambda: victim.up(machine))
        count_is_right(it, {"m1"})
        assert it.sim.cluster.tally.tasks["qmcreate"]["OK"] == 1


def test_a_machine_that_is_destroyed_while_it_is_made_elsewhere_is_waited_for(
    tmp_path, monkeypatch
):
    quick(monkeypatch)
    with prox_lab(tmp_path, SOURCES["clone-qemu"], **slow_cluster(SLOW)) as it:
        machine = it.machine(it.stack(), 1)
        victim = Victim(it, monkeypatch)
        victim.dies_at(before=False)
        victim.goes_on_until_dead(machine)
        with pytest.raises(NotYetError):
            Proxmox.destroy(it.driver, machine.name)
        it.driver.destroy(machine.name)
        count_is_right(it, set())


@pytest.mark.parametrize("dies", [True, False], ids=["dies", "lives"])
def test_what_no_answer_came_to_is_not_left_behind_by_a_removal(tmp_path, monkeypatch, dies):
    """Carried out, answered with 502: whoever removes the machine waits for the clone."""
    quick(monkeypatch)
    with prox_lab(tmp_path, SOURCES["clone-qemu"], **slow_cluster(SLOW)) as it:
        machine = it.machine(it.stack(), 1)
        victim = Victim(it, monkeypatch)
        victim.loses_the_answer_to("POST")

        def lost() -> None:
            with contextlib.suppress(NotYetError):
                victim.up(machine)
            if machine.name not in victim.driver.machines.ownership._unanswered:
                raise NotYetError("not asked for yet", after=0.05)

        with contextlib.suppress(TransientError):
            until_done(lost, tries=1)
        driver = it.driver if dies else victim.driver
        victim.dead = dies
        driver.destroy(machine.name)
        count_is_right(it, set())
        assert it.sim.cluster.tally.tasks["qmclone"]["OK"] == 1


@pytest.mark.parametrize("token", ["narrow", "wide"])
def test_a_clone_that_ends_while_it_is_looked_for_is_not_taken_for_a_strangers(tmp_path, token):
    """It was locked or unseen a moment ago, and when the tasks are asked for it is made."""
    with prox_lab(tmp_path, narrow=token == "narrow", **slow_cluster(SLOW)) as it:
        name = it.machine(it.stack(), 1).name
        driver, cluster = it.new_driver(), it.sim.cluster
        number = driver.machines.holdings.id(name)
        facts = {"plane": it.plane, "stack": "lab", "machine": "m1"}
        said = {"description": f"`essaim {json.dumps(facts)}`", "pool": "students", "full": 1}
        it.sim.ask("POST", "/nodes/pve1/qemu/9500/clone", newid=number, **said)

        def seen(what) -> None:
            with cluster.clock.lock:
                cluster.clock.settle()
                if not what():
                    raise NotYetError("not yet", after=0.02)

        until_done(lambda: seen(lambda: number in cluster.guests))

        def ended(_number: int) -> bool:
            until_done(lambda: seen(lambda: not cluster.guests[number].conf.get("lock")))
            return False

        driver.clerk.uses.is_being_made = ended
        with pytest.raises(NotYetError):
            driver.machines.ownership.claim(name, number, taken=True)
        assert driver.machines.ownership.claim(name, number, taken=True).id == number
        assert driver.machines.holdings.refused() == frozenset()
