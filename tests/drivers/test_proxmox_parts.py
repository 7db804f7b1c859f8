"""The parts of the Proxmox driver that only think: sentences, numbers, places, parameters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essaim.drivers.proxmox import archives, guests, jobs, places, refusals, tasks
from essaim.drivers.proxmox.cluster import first_storage, read_listing
from essaim.drivers.proxmox.numbers import (
    boot_moment,
    boot_number,
    card_address,
    card_candidates,
    id_candidates,
)
from essaim.drivers.proxmox.refusals import Refusal
from essaim.drivers.proxmox.settings import Settings
from essaim.model.errors import NotYetError, RejectedError
from essaim.model.machines import Seed
from essaim.model.names import MachineName
from essaim.model.stacks import Image, Machine, Network, Size
from essaim.plan.limits import Gate

ALICE = MachineName("promo", "alice")


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (500, "unable to create VM 50000: config file already exists", "taken"),
        (500, "close (rename) atomic file '/etc/pve/x' failed: File exists", "taken"),
        (500, "can't lock file '/var/lock/qemu-server/lock-9.conf' - got timeout", "locked"),
        (500, "CT is locked (disk)", "locked"),
        (500, "cfs-lock 'storage-vol-ceph-1' error: got lock request timeout", "locked"),
        (500, "CT 50000 already running", "running"),
        (500, "VM 50000 not running", "stopped"),
        (500, "Configuration file 'nodes/pve1/lxc/5.conf' does not exist", "gone"),
        (403, "Permission check failed (/vms/9000, VM.Clone)", "denied"),
        (401, "authentication failure", "denied"),
        (500, "cluster not ready - no quorum?", "lost"),
        (500, "Internal Server Error", "lost"),
        (502, "Bad Gateway", "lost"),
        (595, "No route to host", "lost"),
        (596, "Connection timed out", "lost"),
        (400, "Parameter verification failed. memory: value must have a minimum", "wrong"),
        (500, "storage 'x' does not support container directories", "wrong"),
    ],
)
def test_what_a_cluster_says_is_sorted_by_what_to_do_about_it(code, text, kind):  # R-B2
    assert refusals.sort(code, text) is Refusal(kind)


def test_who_is_to_blame_for_a_lock_and_what_is_missing():  # R-B2
    assert refusals.locked_where("can't lock file '/var/lock/qemu-server/lock-9.conf'") == ("", 9)
    assert refusals.locked_where("CT is locked (disk)") == ("", 0)
    said = "clone failed: cfs-lock 'storage-vol.ceph-1' error: got lock request timeout"
    assert refusals.locked_where(said) == ("vol.ceph-1", 0)
    said = "can't lock file '/var/lock/pve-manager/pve-storage-local' - got timeout"
    assert refusals.locked_where(said) == ("local", 0)
    said = "Permission check failed (/storage/x, Datastore.AllocateSpace)"
    assert refusals.missing_privilege(said) == ("Datastore.AllocateSpace", "/storage/x")


def test_a_task_is_read_by_its_name():  # R-B2
    upid = "UPID:pve1:000F4240:0ABCDEF0:6732E5A0:vzclone:9000:essaim@pve!plane:"
    assert tasks.read_upid(upid) == tasks.Upid(
        "pve1", "vzclone", "9000", "essaim@pve!plane", 0x6732E5A0
    )
    for wrong in ("", "UPID:pve1", upid[:-1], upid + "x", "None"):
        assert tasks.read_upid(wrong) is None
    assert [tasks.went_well(end) for end in ("OK", "WARNINGS: 1", "", "unexpected status")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_durations_follow_what_is_seen():  # R-B2
    its = tasks.Durations()
    assert its.expected("clone") is None
    for seconds in (10.0, 10.0, 20.0):
        its.ended("clone", seconds)
    found = its.expected("clone")
    assert found is not None
    assert found.seconds == pytest.approx(13.0)
    assert 2.0 < found.spread < 5.0
    for _ in range(30):
        its.ended("clone", 12.0)
    found = its.expected("clone")
    assert found is not None
    assert (found.seconds, found.spread) == pytest.approx((12.0, 0.0), abs=0.01)


@given(st.integers(100, 10_000), st.integers(0, 300), st.sets(st.integers(100, 10_300)))
def test_every_free_id_is_a_candidate_once(first, count, taken):  # R-B2
    found = list(id_candidates(ALICE, "plane", (first, first + count), taken))
    assert sorted(found) == [n for n in range(first, first + count + 1) if n not in taken]


def test_two_control_planes_begin_elsewhere_and_a_name_keeps_its_own():  # R-B2
    within = (50_000, 59_999)
    first = next(id_candidates(ALICE, "one", within))
    assert first == next(id_candidates(ALICE, "one", within))
    assert first != next(id_candidates(ALICE, "two", within))


def test_a_card_is_one_of_proxmoxs_own():  # R-B5
    number = next(card_candidates(ALICE, "one"))
    address = card_address(number)
    assert address.startswith("bc:24:11:")
    assert len(address.split(":")) == 6
    assert address == address.lower()


@given(st.integers(0, 500_000), st.floats(1.6e9, 4e9))
def test_a_boot_is_a_number_of_its_machine_and_moment(place, moment):  # R-B5
    number = boot_number(place, moment)
    assert 0 <= number < 1 << 63
    assert abs(boot_moment(number) - moment) < 0.01


NODES = [
    {"type": "node", "node": f"pve{n}", "status": "online", "maxmem": 64 << 30, "maxcpu": 8}
    for n in (1, 2, 3)
]
SHARED = {"type": "storage", "storage": "ceph", "node": "pve1", "shared": 1}


def rows(*more):
    return read_listing([*NODES, SHARED, *more], 0.0)


def guest(number, node="pve1", **more):
    return {"type": "lxc", "vmid": number, "node": node, "maxmem": 8 << 30, **more}


def test_a_listing_is_read():
    found = rows(guest(5, name="a", tags="essaim;x, y", uptime=7, lock="clone", template=1))
    assert found.guests[5].tags == {"essaim", "x", "y"}
    assert (found.guests[5].lock, found.guests[5].template) == ("clone", True)
    assert found.shared == {"ceph"}
    assert found.online("pve1")
    assert not found.online("pve9")
    assert first_storage({"ide2": "x:cloudinit", "scsi0": "ceph:vm-1,size=1G"}) == "ceph"


def test_the_roomiest_node_gets_it_and_those_to_come_count():  # R-B5
    listing = rows(guest(5, "pve1"), guest(6, "pve2"))
    rooms = places.room(listing, {}, ())
    assert places.roomiest(rooms) == "pve3"
    assert places.roomiest(places.room(listing, {"pve3": 2}, ())) == "pve1"
    assert set(places.room(listing, {}, ("pve2",))) == {"pve2"}
    with pytest.raises(NotYetError):
        places.roomiest(rooms, "pve9")


def test_a_linked_clone_stays_with_its_template_unless_all_share_the_storage():  # R-B5
    listing = rows(guest(9000, "pve1", name="gui", template=1), guest(5, "pve1"))
    sources = places.templates(listing, "gui", "", "image")
    rooms = places.room(listing, {}, ())
    assert places.choose(sources, rooms, {}, anywhere=False).node == "pve1"
    assert places.choose(sources, rooms, {}, anywhere=True).node == "pve2"
    assert places.choose(sources, rooms, {}, anywhere=True, node="pve1").node == "pve1"
    with pytest.raises(NotYetError):
        places.choose(sources, rooms, {}, anywhere=False, node="pve3")


def test_the_template_with_the_shortest_line_is_cloned():  # R-B2
    both = rows(
        guest(9000, "pve1", name="gui", template=1), guest(9001, "pve2", name="gui", template=1)
    )
    sources = places.templates(both, "gui", "lxc", "image")
    place = places.choose(sources, places.room(both, {}, ()), {9000: 3.0}, anywhere=False)
    assert (place.source.id, place.moves) == (9001, False)
    assert [one.id for one in places.templates(both, 9001, "", "image")] == [9001]
    with pytest.raises(RejectedError, match="there is no lxc template gu") as caught:
        places.templates(both, "gu", "lxc", "image")
    assert "gui" in caught.value.hint


def wanted(**settings) -> guests.Wanted:
    machine = Machine(
        name=ALICE,
        group="m",
        index=1,
        address="10.77.0.11",
        image="gui",
        size=Size(cores=2, memory=512),
        labels=settings.pop("labels", {}),
    )
    return guests.Wanted(
        machine=machine,
        network=Network(cidr="10.77.0.0/24"),
        image=Image(name="gui", builder="template", digest="abc", settings=settings),
        seed=Seed(hostname="alice", host_key="a secret", authorized_keys=("ssh-ed25519 AAAA",)),
        id=50000,
        card="bc:24:11:00:00:01",
    )


SITE = Settings(
    site="pve", urls=("https://x",), secret={"env": "X"}, ids=(50000, 50099), vlan=285,
    gateway="10.77.0.254",
)  # fmt: skip


def test_labels_of_a_machine_go_before_what_the_site_says():
    said = guests.config(SITE, "p", wanted(template="gui"), "lxc")["net0"]
    assert said == (
        "name=eth0,bridge=vmbr0,tag=285,hwaddr=BC:24:11:00:00:01,"
        "ip=10.77.0.11/24,gw=10.77.0.254,type=veth"
    )
    labels = {"bridge": "vmbr7", "vlan": "9", "address": "dhcp"}
    said = guests.config(SITE, "p", wanted(template="gui", labels=labels), "lxc")["net0"]
    assert "bridge=vmbr7,tag=9" in said
    assert "ip=dhcp" in said


def test_a_description_says_whose_it_is_and_no_secret():
    it = wanted(template="gui", labels={"description": "CT of Alice, essaim {"})
    assert guests.owner(guests.description("p", it)) == ("p", ALICE)
    plain = wanted(template="gui")
    assert guests.owner(guests.description("p", plain)) == ("p", ALICE)
    for said in (
        guests.clone(SITE, "p", plain, "lxc", ""),
        guests.config(SITE, "p", plain, "qemu"),
    ):
        assert "a secret" not in str(said)
    for text in ("", "essaim {", "essaim {}", 'essaim {"plane": 1}'):
        assert guests.owner(text) is None
    assert guests.image_of(frozenset(guests.tags("p", "abc").split(";"))) == "abc"


def test_an_image_of_another_driver_is_refused_in_words():
    it = wanted()
    with pytest.raises(RejectedError, match="builder debian"):
        guests.source_of(Image(name="x", builder="debian", digest="d"))
    with pytest.raises(RejectedError):
        guests.source_of(it.image)


def job(**values) -> jobs.Job:
    return jobs.Job(key="k", what="clones gui", kind="clone", begin=str, **values)


def test_who_waits_comes_back_when_it_is_worth_it():  # R-B2
    gate = (Gate("g"),)
    running = [job(gates=gate, since=1.0) for _ in range(4)]
    waiting = [job(gates=gate) for _ in range(40)]
    line = [*running, *waiting]
    assert jobs.line(waiting[10], line) == (10, 4)
    usual = tasks.Usual(10.0, 0.5)
    assert jobs.patience(running[0], line, usual, now=3.0) == 9.0  # it may take a little longer
    assert jobs.patience(running[0], line, usual, now=30.0) == 1.0  # it is late
    assert jobs.patience(waiting[0], line, usual, now=3.0) == 10.0
    assert jobs.patience(waiting[20], line, usual, now=3.0) == pytest.approx(51.0)
    assert jobs.patience(waiting[-1], line, None, now=3.0) < 3
    assert jobs.open_to(waiting, {"g"}, 5) == []
    assert len(jobs.open_to(waiting, set(), 5)) == 5


def test_what_people_read_while_they_wait():  # R-B2
    it = job(gates=(Gate("g"), Gate("h")), since=1.0)
    assert jobs.tell(it, {"g": "full"}, 18.0) == "clones gui (17 s so far)"
    it = job(gates=(Gate("g"), Gate("h")))
    assert jobs.tell(it, {}, 18.0) == "clones gui soon"
    assert jobs.tell(it, {"h": "waits for h"}, 18.0) == "waits for h"
    it.locked, it.hurry = "clones gui: got timeout", 20.0
    assert jobs.tell(it, {"h": "waits for h"}, 18.0) == "clones gui: got timeout"
    assert jobs.tell(it, {"h": "waits for h"}, 21.0) == "waits for h"


def test_a_task_is_looked_at_when_it_should_end_and_often_only_if_others_wait():  # R-B2
    it, usual = job(gates=(Gate("g"),), since=100.0), tasks.Usual(24.0, 0.5)
    assert jobs.next_look(it, None, 100.0, ()) < 100.1  # nothing is known: soon, then less often
    assert jobs.next_look(it, None, 120.0, ()) == 121.0
    assert jobs.next_look(it, usual, 100.1, {"g"}) == 123.0
    assert jobs.next_look(it, usual, 100.1, ()) == 124.5
    assert 123.0 < jobs.next_look(it, usual, 123.0, {"g"}) < 123.5
    assert jobs.next_look(it, usual, 125.0, ()) == 126.0
    assert jobs.next_look(it, usual, 160.0, {"g"}) == 161.0  # it is very late


def test_what_was_found_to_be_over_ended_since_the_last_look():  # R-B2
    it = job(since=100.0, seen=123.8)
    assert jobs.lasted(it, None, 124.2) == pytest.approx(24.0)
    it.seen = 100.0  # the first look found it: it may have ended any time, so a little before
    assert 23.0 < jobs.lasted(it, tasks.Usual(24.0, 0.2), 124.0) < 24.0


def test_looks_settle_where_tasks_end():  # R-B2
    """Found late at first, then within a hundredth of what they take, by few looks."""
    its, late, looks = tasks.Durations(), 0.0, 0
    for number in range(40):
        it, now = job(gates=(Gate("g"),), since=0.0), 0.0
        while True:
            now = jobs.next_look(it, its.expected("clone"), now, {"g"})
            looks += number >= 20
            if now >= 24.25:
                break
            it.seen = now
        its.ended("clone", jobs.lasted(it, its.expected("clone"), now))
        late += (now - 24.25) * (number >= 20)
    assert late / 20 < 0.24
    assert looks / 20 < 4


def test_the_gate_that_let_too_many_pass_is_told():  # R-B2
    it = job(
        gates=(Gate("template"), Gate("storage")),
        sources={"ceph": "storage", "9000": "template", "guest": "template"},
    )
    refused = {
        "cfs-lock 'storage-ceph' error: got lock request timeout": "storage",
        "CT is locked (disk)": "template",
        "can't lock file '/run/lock/lxc/pve-config-9000.lock' - got timeout": "template",
    }
    for text, gate in refused.items():
        assert jobs.refused_gates(it, Exception(text)) == {gate}


def test_a_short_name_of_an_archive_is_its_newest():
    there = [f"nfs:vztmpl/{name}.tar.zst" for name in ("deb_11.6-1", "deb_11.10-1", "debian_9-1")]
    assert archives.newest("nfs:deb", there) == "nfs:vztmpl/deb_11.10-1.tar.zst"
    with pytest.raises(RejectedError, match="storage nfs has no archive debianx") as caught:
        archives.newest("nfs:debianx", there)
    assert caught.value.hint == "did you mean debian?"
