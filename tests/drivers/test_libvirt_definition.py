"""What libvirt is told about a machine, and the numbers that come from its name."""

from __future__ import annotations

import ipaddress
import itertools
from dataclasses import replace
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from essaim.drivers.libvirt import definition, ports
from essaim.drivers.libvirt.definition import Facts, Hardware
from essaim.model.names import MachineName

FACTS = Facts(
    plane="p1",
    stack="lab",
    machine="m1",
    address="10.77.0.11",
    cidr="10.77.0.0/24",
    image="sha256:d",
    port=22001,
    mac=5,
    group=258,
)
HARDWARE = Hardware(cores=2, memory=512, disk="/p/d.qcow2", seed="/p/d.seed", log="/p/d.log")
NAMES = st.builds(MachineName, st.from_regex(r"[a-z]{1,9}", fullmatch=True), st.just("m1"))


def parsed(facts=FACTS, **changes) -> ET.Element:
    return ET.fromstring(definition.build(facts, replace(HARDWARE, **changes)))


def arguments(root: ET.Element) -> list[str]:
    space = "{http://libvirt.org/schemas/domain/qemu/1.0}"
    return [word.get("value", "") for word in root.iterfind(f"{space}commandline/{space}arg")]


def test_what_was_written_can_be_read_back():
    text = definition.build(FACTS, HARDWARE)
    assert definition.read_facts(text) == FACTS
    assert definition.read_boot(text) == ""


def test_no_character_of_a_fact_or_path_can_leave_its_place():
    nasty = "a'\"<>&]]>;$(id)\u00e9"
    facts = replace(FACTS, image=nasty)
    text = definition.build(facts, replace(HARDWARE, disk=f"/p/{nasty}"))
    assert definition.read_facts(text) == facts
    source = ET.fromstring(text).find("./devices/disk/source")
    assert source is not None
    assert source.get("file") == f"/p/{nasty}"


def test_a_domain_of_somebody_else_has_no_facts():
    assert definition.read_facts("<domain><name>x</name></domain>") is None
    text = definition.build(FACTS, HARDWARE)
    assert definition.read_facts(text.replace('port="22001"', 'port="many"')) is None
    assert definition.read_facts(text.replace('port="22001"', "")) is None


def test_facts_that_came_with_a_later_version_may_be_missing():
    text = definition.build(FACTS, HARDWARE).replace(' accelerator="tcg"', ' colour="red"')
    assert definition.read_facts(text) == FACTS


def test_nothing_listens_but_one_port_of_the_loopback():
    root = parsed()
    devices = root.find("devices")
    assert devices is not None
    assert not [e.tag for e in devices if e.tag in ("graphics", "video", "channel", "redirdev")]
    words = arguments(root)
    assert "user,id=access,net=10.0.2.0/24,restrict=on,hostfwd=tcp:127.0.0.1:22001-:22" in words
    assert "socket,id=cluster,mcast=230.0.1.2:20258,localaddr=127.0.0.1" in words
    assert [word for word in words if word.startswith("-")] == ["-netdev", "-device"] * 2


def test_the_cards_have_places_and_addresses_of_their_own():
    cards = [word for word in arguments(parsed()) if word.startswith("virtio-net-pci")]
    given_at = [dict(pair.split("=") for pair in card.split(",")[1:]) for card in cards]
    assert given_at[0]["addr"] != given_at[1]["addr"]
    assert given_at[0]["mac"] != given_at[1]["mac"]


def test_a_network_of_the_site_takes_the_place_of_the_group():
    root = parsed(network="default")
    source = root.find("./devices/interface/source")
    assert source is not None
    assert source.get("network") == "default"
    assert not [word for word in arguments(root) if "mcast" in word]


def test_the_accelerator_decides_type_and_processor():
    assert parsed().get("type") == "qemu"
    assert parsed().find("./features/tcg/tb-cache") is not None
    fast = parsed(replace(FACTS, accelerator="kvm"))
    assert fast.get("type") == "kvm"
    assert fast.find("./features/tcg") is None
    cpu = fast.find("cpu")
    assert cpu is not None
    assert cpu.get("mode") == "host-passthrough"


def test_another_port_changes_nothing_else():
    moved = replace(FACTS, port=22002)
    text = definition.with_access(definition.build(FACTS, HARDWARE), moved)
    assert definition.read_facts(text) == moved
    assert ET.canonicalize(text) == ET.canonicalize(definition.build(moved, HARDWARE))


def test_a_machine_is_the_same_domain_for_ever_and_on_each_plane_another():
    uuids = [parsed(replace(FACTS, plane=plane)).findtext("uuid") for plane in ("p1", "p1", "p2")]
    assert uuids[0] == uuids[1] != uuids[2]


def test_an_adopted_machine_is_reached_at_its_own_address():
    assert FACTS.door == ("127.0.0.1", 22001)
    assert replace(FACTS, port=0).door == ("10.77.0.11", 22)


@given(NAMES, st.sets(st.integers(22000, 22009), max_size=9))
def test_every_free_port_is_tried_once_and_no_taken_one(name, taken):
    found = list(ports.port_candidates(name, "p1", (22000, 22009), taken))
    assert sorted(found) == sorted(set(range(22000, 22010)) - taken)


def test_names_spread_over_the_ports_and_keep_theirs():
    names = [MachineName("lab", f"m{number}") for number in range(50)]
    firsts = [next(ports.port_candidates(name, "p1", (22000, 29999))) for name in names]
    assert firsts == [next(ports.port_candidates(name, "p1", (22000, 29999))) for name in names]
    assert len(set(firsts)) > 45


@given(NAMES)
def test_groups_are_multicast_and_macs_are_of_single_cards(name):
    number = next(ports.group_candidates(name.stack, "p1"))
    address, port = ports.group_address(number)
    assert ipaddress.ip_address(address).is_multicast
    assert 20000 <= port < 30000
    taken = set(itertools.islice(ports.group_candidates(name.stack, "p1"), 5))
    assert next(ports.group_candidates(name.stack, "p1", taken)) not in taken
    for access in (True, False):
        mac = ports.mac_address(next(ports.mac_candidates(name, "p1")), access=access)
        first = int(mac.split(":")[0], 16)
        assert first & 0b11 == 0b10  # locally administered, not a group
        assert len(mac) == 17


@given(st.ip_addresses(v=4), st.integers(8, 30))
def test_the_inner_network_never_overlaps_the_stacks(address, prefix):
    block = ipaddress.ip_network(f"{address}/{prefix}", strict=False)
    inner = ipaddress.ip_network(ports.inner_network(str(block)))
    assert not inner.overlaps(block)
