"""Machines that never come back: their records go as far as servers answer, nobody else's do.

The site is one of files.
"""

from __future__ import annotations

import pytest

from essaim.model.errors import HeldError
from essaim.usecases import classes, lost_machines, rosters, seats
from essaim.usecases.stacks import stored_stack
from schoolplane import people, plane, roster


@pytest.fixture
def school(new_database, tmp_path):
    with plane(new_database("sqlite"), tmp_path / "site") as made:
        made.apply(roster(), people("alice", "bob"))
        made.apply(roster(name="others", first="10.60.1.10"), people("zoe"))
        yield made


def test_a_roster_is_forgotten_without_its_site(school, tmp_path):
    (tmp_path / "site" / "machines.down").touch()  # nobody there answers
    lost = lost_machines.of_roster(school, "promo")
    assert [str(each) for each in lost] == ["promo/alice  10.60.0.10", "promo/bob  10.60.0.11"]
    assert lost_machines.forget_roster(school, "promo") == []
    assert school.rosters.names() == ["others"]
    assert school.stacks.list_stacks() == ["others"]
    seen = school.site.seen()
    assert list(seen["names"]) == ["vm-zoe.school.example.org"]
    assert list(seen["addresses"]) == ["10.60.1.10"]
    assert len(seen["desktops"]) == 1
    assert set(seen["machines"]) == {"promo/alice", "promo/bob", "others/zoe"}, "not touched"


def test_a_server_that_is_away_is_asked_once_and_told_of(school, tmp_path):
    (tmp_path / "site" / "names.down").touch()
    assert lost_machines.forget_roster(school, "promo") == ["names does not answer"]
    seen = school.site.seen()
    assert len(seen["names"]) == 3, "they stay, and that was said"
    assert list(seen["addresses"]) == ["10.60.1.10"]
    assert school.rosters.names() == ["others"]


def test_one_of_many_is_forgotten_and_made_anew_by_the_next_apply(school):
    lost_machines.forget_roster(school, "promo", ["bob"])
    assert list(school.rosters.students("promo")) == ["alice"]
    stack, _lab = stored_stack(school, "promo")
    assert [str(each.name) for each in stack.machines] == ["promo/alice"]
    planned = rosters.plan(school, roster(), people("alice", "bob"))
    assert [(change.key, change.verb) for change in planned.decided.changes] == [("bob", "enrol")]


def test_what_is_worked_on_is_not_forgotten(school, tmp_path):
    (tmp_path / "site" / "machines.down").touch()  # so that it is tried again and again
    bob = school.rosters.students("promo")["bob"]
    seats.begin(school, seats.Seat(roster(), bob, own=True), "stop")
    with pytest.raises(HeldError, match="being worked on"):
        lost_machines.forget_roster(school, "promo")
    assert set(school.rosters.students("promo")) == {"alice", "bob"}


def test_a_schedule_knows_whether_anybody_will_carry_it_out(school):
    assert not classes.clock_runs(school)
    school.workers.seen("w1", [""], "host", 1, "worker")
    assert not classes.clock_runs(school)
    school.workers.seen("c1", [""], "host", 2, "controller")
    assert classes.clock_runs(school)
