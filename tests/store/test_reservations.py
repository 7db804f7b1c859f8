"""No two holders ever have one number, however many ask at once."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from essaim.model.errors import RejectedError
from essaim.store import reservations
from essaim.store.reservations import Reservations, reservation
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


def test_the_first_free_one_is_found_behind_many_that_are_taken(sqlite):  # R-A3
    its = Reservations(sqlite)
    rows = [
        {"site": "rhodey", "kind": "port", "number": number, "holder": f"lab/m{number}"}
        for number in range(500)
    ]
    sqlite.write(lambda c: c.execute(sa.insert(reservation), rows))
    assert its.number("rhodey", "port", "lab/m7") == 7
    assert its.number("rhodey", "port", "lab/other") is None
    assert its.reserve("rhodey", "port", "lab/other", range(600)) == 500
    with pytest.raises(RejectedError, match="all 500 numbers"):
        its.reserve("rhodey", "port", "lab/another", range(500))


def test_another_number_is_another_one_even_when_somebody_was_quicker(sqlite, monkeypatch):  # R-A3
    its, quick = Reservations(sqlite), Reservations(sqlite)
    its.reserve("rhodey", "port", "lab/m1", [7])
    found = reservations._first_free

    def late(*given):
        monkeypatch.undo()
        number = found(*given)
        quick.reserve("rhodey", "port", "lab/m2", [number])
        return number

    monkeypatch.setattr(reservations, "_first_free", late)
    assert its.reserve("rhodey", "port", "lab/m1", [7, 8, 9], anew=True) == 9
    assert its.held("rhodey", "port") == {8: "lab/m2", 9: "lab/m1"}
