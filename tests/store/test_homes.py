"""Copies of homes: layers upon a full one, whole or not at all, a full one again in time."""

from __future__ import annotations

import os
import stat

import pytest

from controllers.plane import layer
from essaim.model.errors import RejectedError
from essaim.store.homes import MOST_LAYERS, Homes


@pytest.fixture
def homes(tmp_path):
    return Homes(tmp_path / "homes")


def test_layers_follow_a_full_copy(homes):
    assert homes.since("l-1", 0, "n-1") == 0
    assert homes.layers("l-1", 0) == []
    copies = [layer(100, a="1"), layer(200, b="2")]
    homes.add("l-1", 0, "n-1", copies[0], full=True)
    assert homes.since("l-1", 0, "n-1") == 100
    homes.add("l-1", 0, "n-1", copies[1], full=False)
    assert homes.since("l-1", 0, "n-1") == 200
    assert homes.layers("l-1", 0) == copies
    assert homes.layers("l-1", 1) == []


def test_another_machine_begins_with_a_full_copy_and_the_old_one_is_kept_until_then(homes):
    old, new = layer(500), layer(3)
    homes.add("l-1", 0, "n-1", old, full=True)
    assert homes.since("l-1", 0, "n-2") == 0
    assert homes.layers("l-1", 0) == [old]
    homes.add("l-1", 0, "n-2", layer(9), full=False)  # of a machine whose full copy is not there
    assert homes.layers("l-1", 0) == [old]
    homes.add("l-1", 0, "n-2", new, full=True)
    assert homes.layers("l-1", 0) == [new]


def test_it_is_full_again_after_some_layers_or_when_they_outweigh_it(homes):
    homes.add("l-1", 0, "n-1", layer(1), full=True)
    for number in range(MOST_LAYERS):
        assert homes.since("l-1", 0, "n-1") == number + 1
        homes.add("l-1", 0, "n-1", layer(number + 2), full=False)
    assert homes.since("l-1", 0, "n-1") == 0
    homes.add("l-2", 0, "n-1", layer(1), full=True)
    homes.add("l-2", 0, "n-1", layer(2, big=os.urandom(80_000).hex()), full=False)
    assert homes.since("l-2", 0, "n-1") == 0


def test_files_are_the_servers_alone(homes, tmp_path):
    homes.add("l-1", 0, "n-1", layer(1), full=True)
    modes = {
        path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "homes").rglob("*")
    }
    assert modes[False] == 0o600
    assert modes[True] == 0o700


def test_what_is_no_copy_is_refused_and_nothing_changes(homes):
    good = layer(1)
    homes.add("l-1", 0, "n-1", good, full=True)
    for bad in (b"", b"nonsense", good[:-30]):
        with pytest.raises(RejectedError):
            homes.add("l-1", 0, "n-1", bad, full=True)
    assert homes.layers("l-1", 0) == [good]


def test_one_at_a_time(homes):
    with homes.alone("l-1", 0) as first, homes.alone("l-1", 0) as second:
        assert (first, second) == (True, False)
    with homes.alone("l-1", 0) as again:
        assert again


def test_copies_are_forgotten_with_their_lease(homes):
    homes.add("l-1", 0, "n-1", layer(1), full=True)
    homes.add("l-2", 0, "n-1", layer(1), full=True)
    homes.forget("l-1")
    assert homes.leases() == ["l-2"]
    homes.set_aside("l-2", 0)
    assert homes.layers("l-2", 0) == []
    assert homes.copied_at("l-2", 0) is None


def test_nothing_is_kept_of_a_machine_whose_home_is_being_removed(homes):
    good = layer(1, a="1")
    homes.add("l-1", 0, "n-1", good, full=True)
    homes.seal("l-1", 0, "n-1")
    homes.add("l-1", 0, "n-1", layer(2), full=False)
    homes.add("l-1", 0, "n-1", layer(3), full=True)
    assert homes.layers("l-1", 0) == [good]
    assert homes.sealed("l-1", 0, "n-1")
    homes.add("l-1", 0, "n-2", layer(4), full=True)
    assert len(homes.layers("l-1", 0)) == 1
    assert homes.since("l-1", 0, "n-2") == 4
