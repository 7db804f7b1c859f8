"""Addresses are fixed: by example, and as a law."""

from __future__ import annotations

from ipaddress import IPv4Network

from hypothesis import given
from hypothesis import strategies as st

from essaim.config.addresses import address, last_host, offsets, prefix_for

COUNTS = st.dictionaries(
    st.sampled_from("abcdefgh"), st.none() | st.integers(0, 50), min_size=1, max_size=8
)


def test_singles_come_first_then_the_groups_take_turns():
    counts = {"head": None, "red": 3, "disk": None, "blue": 2}
    found = {group: list(places) for group, places in offsets(counts).items()}
    assert found == {"head": [10], "disk": [11], "red": [12, 14, 16], "blue": [13, 15]}


@given(counts=COUNTS, data=st.data())
def test_scaling_one_group_never_moves_another_machine(counts, data):  # R-A3
    before = offsets(counts)
    scalable = [group for group, count in counts.items() if count is not None]
    group = data.draw(st.sampled_from(scalable or sorted(counts)))
    changed = {**counts, group: data.draw(st.integers(0, 200))} if scalable else counts
    after = offsets(changed)
    assert all(after[other] == before[other] for other in counts if other != group)
    kept = min(len(before[group]), len(after[group]))
    assert list(before[group])[:kept] == list(after[group])[:kept]


@given(counts=COUNTS)
def test_no_two_machines_share_a_place(counts):  # R-A3
    every = [offset for places in offsets(counts).values() for offset in places]
    assert len(every) == len(set(every)) == sum(1 if c is None else c for c in counts.values())
    assert all(offset >= 10 for offset in every)


@given(offset=st.integers(10, 1 << 24))
def test_the_suggested_prefix_is_the_longest_that_fits(offset):
    prefix = prefix_for(offset)
    assert last_host(IPv4Network((0, prefix))) >= offset
    assert last_host(IPv4Network((0, prefix + 1))) < offset


def test_addresses_count_from_the_network():
    assert address(IPv4Network("10.77.0.0/16"), 300) == "10.77.1.44"
