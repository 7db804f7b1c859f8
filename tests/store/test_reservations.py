"""No two holders ever have one number, however many ask at once."""

from __future__ import annotations

import pytest

from essaim.model.errors import RejectedError
from essaim.store.reservations import Reservations
from usecases.plane import together


def test_no_two_of_many_get_the_same(database):  # R-A3
    its = Reservations(database)
    holders = [f"lab/m{number}" for number in range(12)]
    got = together(lambda holder: its.reserve("rhodey", "port", holder, range(100, 112)), holders)
    assert sorted(got) == list(range(100, 112))
    assert its.held("rhodey", "port") == dict(zip(got, holders, strict=True))


def test_a_holder_keeps_its_number_until_it_wants_another(database):  # R-A3
    its = Reservations(database)
    assert its.reserve("rhodey", "port", "lab/m1", [7, 8]) == 7
    assert its.reserve("rhodey", "port", "lab/m1", [8]) == 7
    assert its.reserve("rhodey", "port", "lab/m1", [7, 8], anew=True) == 8
    assert its.held("rhodey", "port") == {8: "lab/m1"}
    assert its.reserve("rhodey", "port", "lab/m2", [7, 8]) == 7


def test_kinds_and_sites_are_apart_and_a_release_gives_up_every_kind(database):  # R-A3
    its = Reservations(database)
    for site in ("rhodey", "stark"):
        for kind in ("port", "mac"):
            assert its.reserve(site, kind, "lab/m1", [7]) == 7
    its.release("rhodey", "lab/m1")
    its.release("rhodey", "nobody")
    assert its.held("rhodey", "port") == its.held("rhodey", "mac") == {}
    assert its.held("stark", "mac") == {7: "lab/m1"}


def test_when_all_are_taken_it_says_so(database):  # R-A3
    its = Reservations(database)
    its.reserve("rhodey", "port", "lab/m1", [7])
    with pytest.raises(RejectedError, match="all 1 numbers for a port are taken"):
        its.reserve("rhodey", "port", "lab/m2", [7])
    # The one it wanted to change is still its own.
    with pytest.raises(RejectedError):
        its.reserve("rhodey", "port", "lab/m1", [7], anew=True)
    assert its.held("rhodey", "port") == {7: "lab/m1"}
